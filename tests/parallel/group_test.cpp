// SPDX-License-Identifier: Apache-2.0
// Groups whose ranks are threads of this process.
#include "compact/parallel/group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "compact/base/check.h"
#include "tests/parallel/threads.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

TEST(Group, OfOneProcessOpensNothingAndChangesNothing) {
  const auto group = join_group(Place{.address = "no such machine"}, std::chrono::seconds(1));
  const at::Tensor x = at::arange(3, at::kFloat);
  group->all_reduce(x);
  group->broadcast(x);
  EXPECT_TRUE(at::equal(x, at::arange(3, at::kFloat)));
  EXPECT_EQ(group->gather("a"), std::vector<std::string>{"a"});
  EXPECT_EQ(group->broadcast("b"), "b");
  EXPECT_EQ(group->sum_of(int64_t{7}), 7);
  EXPECT_EQ(group->sum_of(0.5), 0.5);
  bool worked = false;
  EXPECT_TRUE(group->lead([&] { worked = true; }));
  EXPECT_TRUE(worked);
  EXPECT_EQ(group->traffic().bytes, 0);
  EXPECT_TRUE(group->leads());
}

TEST(Group, SumsAndSendsTensorsOfEveryType) {
  for (const int size : {2, 3, 4}) {
    with_ranks(size, [&](Group& group) {
      int64_t bytes = 0;
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
        for (const int64_t count : {0, 1, 7, 5000}) {
          const at::Tensor x =
              at::arange(count, at::kLong).remainder(16).add(group.rank()).to(type);
          const at::Tensor want = at::arange(count, at::kLong)
                                      .remainder(16)
                                      .mul(size)
                                      .add(size * (size - 1) / 2)
                                      .to(type);
          group.all_reduce(x);
          EXPECT_TRUE(at::equal(x, want)) << type << " " << count;
          const at::Tensor y = at::full({count}, group.rank(), type);
          group.broadcast(y, size - 1);
          EXPECT_TRUE(at::equal(y, at::full({count}, size - 1, type))) << type << " " << count;
          bytes += static_cast<int64_t>(2 * x.nbytes() + y.nbytes());
        }
      }
      EXPECT_EQ(group.traffic().bytes, bytes);
      EXPECT_THROW(group.all_reduce(at::zeros({4, 4}).t().narrow(0, 0, 2)), InputError);
      EXPECT_THROW(group.broadcast(at::zeros({4}), size), InputError);
    });
  }
}

// Numbers whose sum says in which order they were added, in one rank or over several.
TEST(Group, SumsInATreeOfNeighbours) {
  const auto value = [](int i) { return std::vector<float>{1e8f, 3.f, -1e8f, 5.f}[i]; };
  const float want = (value(0) + value(1)) + (value(2) + value(3));
  EXPECT_NE(want, value(0) + value(1) + value(2) + value(3));
  with_ranks(4, [&](Group& group) {
    group.sum_in_a_tree();
    for (int to = 0; to < 4; ++to) {
      const at::Tensor t = at::full({3}, value(group.rank()));
      group.wait(group.begin_reduce(t, to));
      if (group.rank() == to) {
        EXPECT_TRUE(at::equal(t, at::full({3}, want))) << t;
      }
    }
    const at::Tensor all = at::full({3}, value(group.rank()));
    group.all_reduce(all);
    EXPECT_TRUE(at::equal(all, at::full({3}, want))) << all;
    EXPECT_EQ(group.sum_of(int64_t{1}), 4);
  });
  with_ranks(3, [](Group& group) { EXPECT_THROW(group.sum_in_a_tree(), InputError); });
}

TEST(Group, SumsForOneRankAndBesideOtherWork) {
  for (const int size : {2, 3}) {
    with_ranks(size, [&](Group& group) {
      std::vector<at::Tensor> tensors;
      std::vector<PendingPtr> all;
      for (int i = 0; i < 20; ++i) {
        tensors.push_back(at::full({1000}, group.rank() + i, at::kFloat));
        all.push_back(i % 3 == 0   ? group.begin_reduce(tensors.back(), i % size)
                      : i % 3 == 1 ? group.begin_all_reduce(tensors.back())
                                   : group.begin_broadcast(tensors.back(), i % size));
      }
      for (PendingPtr& pending : all) group.wait(std::move(pending));
      for (int i = 0; i < 20; ++i) {
        const int sum = size * i + size * (size - 1) / 2;
        if (i % 3 == 0 && group.rank() != i % size) continue;
        EXPECT_TRUE(at::equal(tensors[static_cast<size_t>(i)],
                              at::full({1000}, i % 3 == 2 ? i % size + i : sum, at::kFloat)));
      }
      EXPECT_EQ(group.traffic().bytes, 4000 * (7 + 2 * 7 + 6));
      EXPECT_GT(group.traffic().busy, 0);
      EXPECT_THROW(group.begin_reduce(tensors[0], size), InputError);
    });
  }
}

// The memory of what is under way lives until it is done.
TEST(Group, HoldsWhatIsUnderWay) {
  with_ranks(2, [](Group& group) {
    for (int i = 0; i < 20; ++i) {
      at::Tensor t = at::full({100000}, group.rank(), at::kFloat);
      PendingPtr pending = group.begin_all_reduce(t);
      t = at::Tensor();
      if (i % 2 == 0) group.wait(std::move(pending));
    }
    group.barrier();
  });
}

TEST(Group, OfAPlanMovesNothingAndCounts) {
  const auto group = planned_group(2, 4);
  group->sum_in_a_tree();
  const at::Tensor t = at::empty({10}, at::device(at::kMeta).dtype(at::kFloat));
  group->all_reduce(t);
  group->wait(group->begin_reduce(t, 1));
  group->broadcast(t, 3);
  EXPECT_EQ(group->traffic().bytes, 4 * 40);
  EXPECT_EQ(group->rank(), 2);
  EXPECT_THROW(planned_group(4, 4), InputError);
}

TEST(Group, GathersTextsByRank) {
  with_ranks(3, [](Group& group) {
    const std::vector<std::string> own = {"", std::string("a\0b", 3), std::string(100000, 'x')};
    EXPECT_EQ(group.gather(own[static_cast<size_t>(group.rank())]), own);
    EXPECT_EQ(group.broadcast("of rank " + std::to_string(group.rank())), "of rank 0");
    EXPECT_EQ(group.gather(""), std::vector<std::string>(3));
    EXPECT_EQ(group.sum_of(int64_t{1} << group.rank()), 7);
    EXPECT_EQ(group.sum_of(0.5), 1.5);
    group.barrier();
  });
}

// Longer than the time limit of everything else.
TEST(Group, WaitsForRankZeroHoweverLong) {
  with_ranks(
      2,
      [](Group& group) {
        std::atomic<bool> worked = false;
        const bool ended = group.lead([&] {
          std::this_thread::sleep_for(std::chrono::seconds(3));
          worked = true;
        });
        EXPECT_TRUE(ended);
        EXPECT_EQ(worked, group.leads());
        group.barrier();
        if (group.leads()) {
          EXPECT_THROW(group.lead([] { fail("the disk is full"); }), InputError);
        } else {
          EXPECT_FALSE(group.lead([] {}));
        }
        EXPECT_EQ(group.sum_of(int64_t{1}), 2);  // what was thrown may have been a warning
        if (group.leads()) {
          EXPECT_TRUE(group.leave({0, 2, "no more"}, std::chrono::seconds(5)));
        } else {
          EXPECT_THROW(group.lead([] {}), GroupError);
          EXPECT_EQ(group.failure()->message, "no more");
        }
      },
      1);
}

TEST(Group, HearsWhyARankLeft) {
  for (const int who : {0, 1}) {
    with_ranks(3, [&](Group& group) {
      group.barrier();  // all have joined
      if (group.rank() == who) {
        EXPECT_TRUE(group.leave({who, 3, "step 7: the loss is\nnan"}, std::chrono::seconds(5)));
        return;
      }
      EXPECT_THROW(group.barrier(), GroupError);
      const auto failure = group.failure();
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->rank, who);
      EXPECT_EQ(failure->code, 3);
      EXPECT_EQ(failure->message, "step 7: the loss is\nnan");
    });
  }
}

TEST(Group, HearsOnlyTheFirst) {
  std::atomic<int> firsts = 0;
  with_ranks(2, [&](Group& group) {
    group.barrier();
    if (group.leave({group.rank(), 1, "mine"}, std::chrono::seconds(5))) {
      ++firsts;
      return;
    }
    const auto failure = group.failure();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->rank, 1 - group.rank());
  });
  EXPECT_EQ(firsts, 1);
}

TEST(Group, GivesUpOnARankThatDoesNotAnswer) {
  with_ranks(
      2,
      [](Group& group) {
        group.barrier();
        if (group.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(4));
        EXPECT_THAT(error_of<GroupError>([&] { group.barrier(); }),
                    testing::StartsWith("another rank has gone or did not answer: "));
      },
      2);
}

TEST(Group, NeedsAPlaceToMeet) {
  const int port = free_port();
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{.sin6_family = AF_INET6,
                       .sin6_port = htons(static_cast<uint16_t>(port)),
                       .sin6_addr = in6addr_any};
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  const Place taken{.rank = 0, .size = 2, .address = "127.0.0.1", .port = port};
  EXPECT_THAT(error_of([&] { join_group(taken, std::chrono::seconds(2)); }),
              testing::StartsWith("rank 0 of 2: the ranks do not meet at 127.0.0.1:"));
  close(fd);
  const Place nobody{.rank = 1, .size = 2, .address = "127.0.0.1", .port = port};
  EXPECT_THROW(join_group(nobody, std::chrono::seconds(2)), InputError);
}

}  // namespace
}  // namespace compact
