// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/token_file.h"

#include <gmock/gmock.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "compact/data/text/token_header.h"
#include "tests/data/files.h"
#include "tests/data/wide_tokenizer.h"
#include "tests/full_disk.h"

namespace compact {
namespace {

std::string write_tokens(const std::string& path, const Tokenizer& tokenizer,
                         const std::vector<uint32_t>& tokens, size_t part = 1000) {
  TokenWriter writer(path, tokenizer);
  for (size_t i = 0; i < tokens.size(); i += part) {
    writer.append(std::span(tokens).subspan(i, std::min(part, tokens.size() - i)));
  }
  EXPECT_EQ(writer.count(), static_cast<int64_t>(tokens.size()));
  writer.finish();
  return path;
}

std::vector<uint32_t> some_tokens(size_t count, uint32_t vocabulary) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<uint32_t>(i * 2654435761u) % vocabulary;
  return tokens;
}

TEST(TokenFile, ComesBackInEitherWidth) {
  const TextFolder folder;
  const test::WideTokenizer wide(100000), full(1 << 16);
  const auto bytes = make_tokenizer("bytes");
  const std::pair<const Tokenizer*, int> cases[] = {{bytes.get(), 2}, {&full, 2}, {&wide, 4}};
  for (const auto& [tokenizer, width] : cases) {
    for (const size_t count : {0, 1, 2, 31, 4097, 300001}) {
      const auto tokens = some_tokens(count, static_cast<uint32_t>(tokenizer->vocabulary()));
      const TokenFile file(write_tokens(folder / "a.tokens", *tokenizer, tokens));
      EXPECT_EQ(file.info().width, width);
      EXPECT_EQ(file.count(), static_cast<int64_t>(count));
      EXPECT_EQ(file.info().vocabulary, tokenizer->vocabulary());
      EXPECT_EQ(file.info().end_of_text, tokenizer->end_of_text());
      EXPECT_EQ(file.info().tokenizer, tokenizer->spec());
      std::vector<int64_t> back(count);
      file.copy(0, back);
      EXPECT_TRUE(std::equal(back.begin(), back.end(), tokens.begin(), tokens.end()));
      file.check_tokenizer(*tokenizer);
      EXPECT_TRUE(is_token_file(folder / "a.tokens"));
    }
  }
  EXPECT_THAT(folder.names(), ElementsAre("a.tokens"));
}

TEST(TokenFile, CopyStaysWithinTheFile) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const TokenFile file(write_tokens(folder / "a", *bytes, some_tokens(10, 257)));
  std::vector<int64_t> out(4);
  file.copy(6, out);
  for (const int64_t begin : {int64_t{-1}, int64_t{7}, int64_t{11}, INT64_MAX, INT64_MIN}) {
    EXPECT_THAT(one_line_error_of([&] { file.copy(begin, out); }), HasSubstr("must be within 10"));
  }
}

// As somebody writes the file again, or a disk goes away, while it is trained on.
TEST(TokenFile, ThatIsCutOrChangedAfterItWasOpenedIsAnError) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const auto tokens = some_tokens(300000, 257);
  const std::string path = write_tokens(folder / "a", *bytes, tokens);
  const TokenFile file(path);
  std::vector<int64_t> out(100);
  const auto error_at = [&](int64_t begin) {
    return one_line_error_of([&] { file.copy(begin, out); });
  };
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(std::filesystem::file_size(path)) - 2)
      .write("\xff\xff", 2);
  EXPECT_THAT(error_at(299900), HasSubstr("was changed after it was opened"));
  std::filesystem::resize_file(path, 5001);
  EXPECT_THAT(error_at(200000), HasSubstr(path + ": ends at byte 400"));
  EXPECT_THAT(error_at(2420), HasSubstr(path + ": ends at byte 5001"));
  file.copy(2000, out);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), tokens.begin() + 2000));
}

TEST(TokenFile, CutAtEveryByteIsAnError) {
  const TextFolder folder;
  const test::WideTokenizer wide(100000);
  const auto bytes = make_tokenizer("bytes");
  const Tokenizer* const both[] = {&wide, bytes.get()};
  for (const Tokenizer* tokenizer : both) {
    const std::string whole =
        slurp(write_tokens(folder / "whole", *tokenizer, some_tokens(21, 257)));
    const std::string path = folder / "cut";
    for (size_t size = 0; size < whole.size(); ++size) {
      write_file(path, whole.substr(0, size));
      const std::string error = one_line_error_of([&] { TokenFile file(path); });
      EXPECT_THAT(error, StartsWith(path + ": "));
      EXPECT_THAT(error, HasSubstr(size == 0  ? "is empty (0 bytes)"
                                   : size < 8 ? "does not start with CompActT"
                                              : "is cut short"))
          << size;
    }
    write_file(path, whole + "x");
    EXPECT_THAT(one_line_error_of([&] { TokenFile file(path); }),
                HasSubstr("1 bytes after its 21 ids"));
  }
}

TEST(TokenFile, EveryChangedByteIsAnError) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const std::string whole = slurp(write_tokens(folder / "whole", *bytes, some_tokens(9, 257)));
  const std::string path = folder / "changed";
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const unsigned char flip : {0x01, 0x80, 0xFF}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      write_file(path, changed);
      EXPECT_THAT(one_line_error_of([&] { TokenFile file(path); }), StartsWith(path + ": ")) << i;
    }
  }
}

// A file whose checksums are right and whose values are not.
std::string forged(TokenFileInfo info, const std::string& ids) {
  info.checksum = XXH3_64bits(ids.data(), ids.size());
  return encode_token_header(info) + ids;
}

TEST(TokenFile, ForgedHeadersAreRefused) {
  const TextFolder folder;
  const std::string path = folder / "forged";
  const std::string ids("\x01\x00\x05\x00\x09\x00\x00\x00", 8);
  TokenFileInfo good{
      .width = 2, .count = 4, .vocabulary = 10, .end_of_text = 9, .tokenizer = "bytes"};
  const auto opens = [&](const std::string& bytes) { TokenFile file(write_file(path, bytes)); };
  opens(forged(good, ids));
  const auto fails = [&](auto change) {
    TokenFileInfo info = good;
    change(info);
    return one_line_error_of([&] { opens(forged(info, ids)); });
  };
  using Info = TokenFileInfo&;
  EXPECT_EQ(fails([](Info i) { i.vocabulary = 9, i.end_of_text = 8; }),
            path + ": every token id must be below the vocabulary, 9, one is 9");
  EXPECT_THAT(fails([](Info i) { i.width = 3; }), HasSubstr("bytes per id must be 2 or 4, is 3"));
  EXPECT_THAT(fails([](Info i) { i.width = 0; }), HasSubstr("bytes per id must be 2 or 4, is 0"));
  EXPECT_THAT(fails([](Info i) { i.count = 5; }), HasSubstr("tells of 5 ids, the file holds 4"));
  EXPECT_THAT(fails([](Info i) { i.count = 3; }), HasSubstr("2 bytes after its 3 ids"));
  EXPECT_THAT(fails([](Info i) { i.count = -1; }), HasSubstr("cut short"));
  // 2^63 + 4: times two it is 8 again.
  EXPECT_THAT(fails([](Info i) { i.count = INT64_MIN + 4; }), HasSubstr("cut short"));
  EXPECT_THAT(fails([](Info i) { i.vocabulary = 0; }),
              HasSubstr("vocabulary must be in [1, 65536]"));
  EXPECT_THAT(fails([](Info i) { i.vocabulary = 65537; }), HasSubstr("is 65537"));
  EXPECT_THAT(fails([](Info i) { i.vocabulary = -1; }), HasSubstr("vocabulary must be in"));
  EXPECT_THAT(fails([](Info i) { i.end_of_text = 10; }), HasSubstr("end of text must be below"));
  std::string other_version = forged(good, ids);
  other_version[8] = 4;
  EXPECT_THAT(one_line_error_of([&] { opens(other_version); }),
              HasSubstr("version must be from 1 to 3, is 4"));
  EXPECT_THAT(fails([](Info i) { i.samples = true; }), HasSubstr("bytes per id must be 4, is 2"));
  EXPECT_THAT(fails([](Info i) { i.samples = true, i.width = 4, i.count = 2, i.vocabulary = -1; }),
              HasSubstr("vocabulary must be in [1, 1073741824]"));
  std::string long_name = forged(good, ids);
  std::memset(long_name.data() + 56, 0xFF, 4);
  EXPECT_THAT(one_line_error_of([&] { opens(long_name); }),
              HasSubstr("at most 65536 bytes, has 4294967295"));
  std::string bad_id = forged(good, ids);
  bad_id[bad_id.size() - 2] ^= 1;
  EXPECT_THAT(one_line_error_of([&] { opens(bad_id); }),
              HasSubstr("checksum of its ids does not match"));
}

TEST(TokenFile, SamplesHaveMarks) {
  const TextFolder folder;
  const std::vector<uint32_t> ids = {1u << 30 | 7, 3, 1u << 31 | 9};
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * 4);
  TokenFileInfo info{.samples = true, .width = 4, .count = 3, .vocabulary = 10, .tokenizer = "x"};
  const TokenFile file(write_file(folder / "a", forged(info, bytes)));
  EXPECT_TRUE(file.info().samples);
  std::vector<int64_t> out(3);
  file.copy(0, out);
  EXPECT_THAT(out, ElementsAre(kSampleBegin | 7, 3, kTarget | 9));
  info.vocabulary = 9;  // marks do not hide an id that is too large
  EXPECT_THAT(one_line_error_of([&] { TokenFile(write_file(folder / "a", forged(info, bytes))); }),
              HasSubstr("must be below the vocabulary, 9, one is 9"));
}

TEST(TokenFile, WideIdsAreCheckedInEveryPart) {
  const TextFolder folder;
  std::vector<uint32_t> ids(200000, 7);
  TokenFileInfo info{
      .width = 4, .count = 200000, .vocabulary = 100, .end_of_text = 0, .tokenizer = "x"};
  for (const size_t place : {size_t{0}, size_t{65535}, size_t{65536}, size_t{199999}}) {
    ids[place] = 0x80000001u;
    const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * 4);
    const std::string path = write_file(folder / "a", forged(info, bytes));
    EXPECT_THAT(one_line_error_of([&] { TokenFile file(path); }), HasSubstr("one is 2147483649"));
    ids[place] = 7;
  }
}

TEST(TokenFile, OtherFilesAreRefused) {
  const TextFolder folder;
  const auto fails = [](const std::string& path) {
    return one_line_error_of([&] { TokenFile file(path); });
  };
  EXPECT_THAT(fails(folder / "missing"), HasSubstr("missing: cannot be read: No such file"));
  EXPECT_THAT(fails(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(fails(example("hard-times.txt")), HasSubstr("does not start with CompActT"));
  EXPECT_FALSE(is_token_file(folder / "missing"));
  EXPECT_FALSE(is_token_file(folder.path()));
}

TEST(TokenFile, OtherTokenizerIsNamed) {
  const TextFolder folder;
  const test::WideTokenizer wide(1000);
  const TokenFile file(write_tokens(folder / "a", wide, {1, 2}));
  const std::string error =
      one_line_error_of([&] { file.check_tokenizer(*make_tokenizer("bytes")); });
  EXPECT_THAT(error,
              StartsWith(folder / "a" + ": was made with the tokenizer `wide:vocabulary=1000`"));
  EXPECT_THAT(error, HasSubstr("must be the one in use, `bytes`"));
}

TEST(TokenWriter, WithoutFinishNothingChanges) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const std::string path = write_tokens(folder / "a", *bytes, {1, 2, 3});
  const std::string before = slurp(path);
  {
    TokenWriter writer(path, *bytes);
    writer.append(some_tokens(500000, 257));
    EXPECT_EQ(folder.names().size(), 2u);  // the file being written stands beside
    EXPECT_THAT(one_line_error_of([&] { writer.append(std::vector<uint32_t>{257}); }),
                HasSubstr("one is 257"));
  }
  EXPECT_THAT(folder.names(), ElementsAre("a"));
  EXPECT_EQ(slurp(path), before);
}

TEST(TokenWriter, TwoWritersOfOnePathDoNotMix) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  TokenWriter first(folder / "a", *bytes), second(folder / "a", *bytes);
  first.append(std::vector<uint32_t>{1});
  second.append(std::vector<uint32_t>{2, 3});
  second.finish();
  EXPECT_EQ(TokenFile(folder / "a").count(), 2);
  first.finish();
  EXPECT_EQ(TokenFile(folder / "a").count(), 1);
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(TokenWriter, BadPaths) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const auto fails = [&](const std::string& path) {
    return one_line_error_of([&] { TokenWriter writer(path, *bytes); });
  };
  EXPECT_THAT(fails(folder / "no/such"), HasSubstr("no/such: cannot create (No such file"));
  EXPECT_THAT(fails(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(fails("/dev/full"), HasSubstr("is not a regular file"));
  EXPECT_THAT(fails("/proc/a.tokens"), HasSubstr("/proc/a.tokens: cannot create"));
  EXPECT_THAT(fails(folder / std::string(300, 'n')), HasSubstr("File name too long"));
  EXPECT_THAT(fails(""), HasSubstr("must name a file"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(TokenWriter, AFullDiskLeavesTheOlderFile) {
  const TextFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const std::string path = write_tokens(folder / "a", *bytes, {1, 2, 3});
  const std::string before = slurp(path);
  for (const size_t tokens : {60000, 1000000}) {  // found out at finish(), and on the way
    const std::string error = error_on_full_disk(100000, [&] {
      TokenWriter writer(path, *bytes);
      writer.append(some_tokens(tokens, 257));
      writer.finish();
    });
    EXPECT_EQ(error, path + ": cannot write (File too large)");
    EXPECT_THAT(folder.names(), ElementsAre("a"));
    EXPECT_EQ(slurp(path), before);
  }
}

}  // namespace
}  // namespace compact
