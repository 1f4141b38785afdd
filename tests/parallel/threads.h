// SPDX-License-Identifier: Apache-2.0
// Groups whose ranks are threads of this process.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "compact/parallel/group.h"

namespace compact {

inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

inline void with_shared_ranks(int size,
                              const std::function<void(const std::shared_ptr<Group>&)>& work,
                              int seconds = 20) {
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const Place place{
          .rank = rank, .size = size, .local = rank, .address = "127.0.0.1", .port = port};
      const std::shared_ptr<Group> group = join_group(place, std::chrono::seconds(seconds));
      work(group);
    });
  }
  for (std::thread& t : threads) t.join();
}

inline void with_ranks(int size, const std::function<void(Group&)>& work, int seconds = 20) {
  with_shared_ranks(
      size, [&](const std::shared_ptr<Group>& group) { work(*group); }, seconds);
}

}  // namespace compact
