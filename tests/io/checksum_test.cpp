// SPDX-License-Identifier: Apache-2.0
#include "compact/io/checksum.h"

#include <gtest/gtest.h>

#include <string>

#include "compact/io/crc32c.h"
#include "tests/temporary_folder.h"

namespace compact {
namespace {

// RFC 3720, B.4, and the customary check value.
TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cu);
}

// The value that heads every TensorBoard file whose version event is 24 bytes long.
TEST(Crc32c, Mask) {
  EXPECT_EQ(mask_crc(crc32c(std::string("\x18\0\0\0\0\0\0\0", 8))), 0x224b7fa3u);
}

TEST(Xxh3, KnownVectorsAndFiles) {
  EXPECT_EQ(xxh3(""), "2d06800538d394c2");
  const TemporaryFolder folder;
  for (size_t size : {size_t{0}, size_t{1}, (size_t{1} << 20) - 1, size_t{1} << 20,
                      (size_t{1} << 20) + 1, size_t{2'500'003}}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + (i >> 8));
    spill(folder / "f", bytes);
    const FileDigest digest = digest_file(folder / "f");
    EXPECT_EQ(digest.bytes, static_cast<int64_t>(size));
    EXPECT_EQ(digest.xxh3, xxh3(bytes)) << size;
  }
}

}  // namespace
}  // namespace compact
