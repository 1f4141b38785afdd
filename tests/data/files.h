// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of this layer: a temporary folder, files, compression, error texts.
#pragma once

#include <gmock/gmock.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "compact/base/check.h"
#include "tests/shared_data.h"
#include "tests/temporary_folder.h"

namespace compact {

// The matchers that most tests use.
using testing::ElementsAre, testing::HasSubstr, testing::IsEmpty, testing::StartsWith;

// A temporary folder whose paths are texts, to be put into messages.
class TextFolder : public TemporaryFolder {
 public:
  std::string path() const { return TemporaryFolder::path().string(); }
  std::string operator/(const std::string& name) const { return path() + "/" + name; }
};

// A test with a folder of its own.
struct InFolder : testing::Test {
  const TextFolder folder;
};

// A new file in the place of an old one: ext4 waits for the disk where a file is cut and rewritten.
inline std::string write_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  spill(path, bytes);
  return path;
}

inline std::string example(const std::string& name) {
  return std::string(COMPACT_SOURCE_DIR "/examples/data/") + name;
}

// `bytes` as ".gz", ".xz" or ".zst" stores them; as they are for "".
inline std::string compressed(const std::string& bytes, const std::string& ending) {
  const size_t most = bytes.size() + bytes.size() / 2 + 1024;
  std::string out(most, '\0');
  auto* const to = reinterpret_cast<unsigned char*>(out.data());
  const auto* const from = reinterpret_cast<const unsigned char*>(bytes.data());
  if (ending == ".gz") {
    z_stream stream{};
    deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    stream.next_in = const_cast<unsigned char*>(from);
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = to;
    stream.avail_out = static_cast<uInt>(most);
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
  } else if (ending == ".xz") {
    size_t size = 0;
    EXPECT_EQ(
        lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, from, bytes.size(), to, &size, most),
        LZMA_OK);
    out.resize(size);
  } else if (ending == ".zst") {
    ZSTD_CCtx* const context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    out.resize(ZSTD_compress2(context, to, most, from, bytes.size()));
    ZSTD_freeCCtx(context);
  } else {
    return bytes;
  }
  return out;
}

// The message of the InputError that `f` throws; a failure where it throws none.
template <class F>
std::string one_line_error_of(F&& f) {
  try {
    f();
  } catch (const InputError& e) {
    const std::string what = e.what();
    EXPECT_EQ(what.find('\n'), what.npos) << "the message must be one line: " << what;
    return what;
  }
  ADD_FAILURE() << "no InputError was thrown";
  return {};
}

}  // namespace compact
