// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prepare.h"

#include <gmock/gmock.h>

#include "compact/data/text/token_file.h"
#include "tests/data/counting_new.h"
#include "tests/data/files.h"
#include "tests/full_disk.h"

namespace compact {
namespace {

std::vector<uint32_t> tokens_of(const std::string& path) {
  const TokenFile file(path);
  std::vector<int64_t> ids(static_cast<size_t>(file.count()));
  file.copy(0, ids);
  return {ids.begin(), ids.end()};
}

std::unique_ptr<Tokenizer> austen() {
  return make_tokenizer("sentencepiece:file=" + example("austen-2048.model"));
}

class Prepare : public InFolder {};

TEST_F(Prepare, DocumentsEndWithEndOfText) {
  write_file(folder / "1.txt", "ab");
  write_file(folder / "2.jsonl.gz",
             compressed("{\"text\":\"c\"}\n{\"text\":\"\"}\n{\"text\":\"d\"}", ".gz"));
  const auto bytes = make_tokenizer("bytes");
  const Prepared made = prepare({folder / "1.txt", folder / "*.gz"}, *bytes, folder / "out");
  EXPECT_THAT(tokens_of(folder / "out"), ElementsAre('a', 'b', 256, 'c', 256, 256, 'd', 256));
  EXPECT_EQ(made.files, 2);
  EXPECT_EQ(made.documents, 4);
  EXPECT_EQ(made.tokens, 8);
  EXPECT_EQ(made.text_bytes, 4);
  EXPECT_EQ(made.replaced, 0);
  TokenFile(folder / "out").check_tokenizer(*bytes);
}

TEST_F(Prepare, TheBundledNovels) {
  const auto tokenizer = austen();
  const std::string text = slurp(example("pride-and-prejudice.txt"));
  for (const std::string ending : {"", ".gz", ".xz", ".zst"}) {
    const std::string path = write_file(folder / ("pride.txt" + ending), compressed(text, ending));
    prepare({path}, *tokenizer, folder / "out");
    std::vector<uint32_t> tokens = tokens_of(folder / "out");
    ASSERT_FALSE(tokens.empty());
    EXPECT_EQ(tokens.back(), 2u);
    tokens.pop_back();
    EXPECT_EQ(tokens, tokenizer->encode(text)) << ending;
    EXPECT_EQ(tokenizer->decode(tokens), text);
  }
}

TEST_F(Prepare, InvalidUtf8) {
  const std::string path = write_file(folder / "a.txt", "caf\xE9 \xFF");
  // `bytes` takes it as it is, sentencepiece gets U+FFFD.
  EXPECT_EQ(prepare({path}, *make_tokenizer("bytes"), folder / "out").replaced, 0);
  EXPECT_THAT(tokens_of(folder / "out"), ElementsAre('c', 'a', 'f', 0xE9, ' ', 0xFF, 256));
  const Prepared made = prepare({path}, *austen(), folder / "out", {.strict = false});
  EXPECT_EQ(made.replaced, 2);
  EXPECT_THAT(made.warnings,
              ElementsAre(path + ": invalid UTF-8 or NUL became U+FFFD, as in 1 other place"));
  EXPECT_EQ(austen()->decode(tokens_of(folder / "out")), "caf\xEF\xBF\xBD \xEF\xBF\xBD");
  EXPECT_EQ(one_line_error_of([&] { prepare({path}, *austen(), folder / "out"); }),
            path + ": must be UTF-8, but there is invalid UTF-8 in the first 6 bytes");
}

TEST_F(Prepare, BadInputLeavesNothing) {
  const auto bytes = make_tokenizer("bytes");
  const std::string output = folder / "out.tokens";
  const std::string good = write_file(folder / "good.txt", "fine");
  const auto fails = [&](const std::string& name, const std::string& contents) {
    const std::string path = folder / name;
    if (!contents.empty()) write_file(path, contents);
    const std::string error = one_line_error_of([&] { prepare({good, path}, *bytes, output); });
    EXPECT_THAT(error, HasSubstr(path + ": "));
    std::filesystem::remove(path);
    EXPECT_THAT(folder.names(), ElementsAre("good.txt"));
    return error;
  };
  EXPECT_THAT(fails("missing.txt", ""), HasSubstr("does not exist"));
  EXPECT_THAT(fails("binary.txt", std::string(100, '\0')), HasSubstr("a binary file"));
  EXPECT_THAT(fails("a.jsonl", "{\"text\": \"a\"}\n{"), HasSubstr("line 2"));
  const std::string zst = compressed(std::string(100000, 'a'), ".zst");
  EXPECT_THAT(fails("a.txt.zst", zst.substr(0, zst.size() - 1)), HasSubstr("cut short"));
  EXPECT_THAT(one_line_error_of([&] { prepare({good}, *bytes, folder / "no/out"); }),
              HasSubstr("cannot create"));
  EXPECT_THAT(one_line_error_of([&] { prepare({good}, *bytes, output, {.field = ""}); }),
              HasSubstr("field"));
}

TEST_F(Prepare, ProtectsWhatIsNoTokenFile) {
  const auto bytes = make_tokenizer("bytes");
  const std::string input = write_file(folder / "in.txt", "fine"),
                    other = write_file(folder / "b.txt", "notes");
  EXPECT_THAT(one_line_error_of([&] { prepare({input}, *bytes, folder.path() + "/./in.txt"); }),
              HasSubstr("is an input"));
  EXPECT_THAT(one_line_error_of([&] { prepare({input}, *bytes, other); }),
              HasSubstr("is not a token file"));
  EXPECT_EQ(slurp(input), "fine");
  EXPECT_EQ(slurp(other), "notes");
  prepare({input}, *bytes, folder / "out");
  prepare({input, other}, *bytes, folder / "out");  // a token file may be made again
  EXPECT_EQ(TokenFile(folder / "out").count(), 11);
}

TEST_F(Prepare, AnExceptionOfTheProgressStopsIt) {
  struct Stop {};
  const PrepareOptions options{.field = "text", .progress = [](int64_t, int64_t) { throw Stop(); }};
  EXPECT_THROW(
      prepare({example("hard-times.txt")}, *make_tokenizer("bytes"), folder / "out", options),
      Stop);
  EXPECT_TRUE(folder.names().empty());
}

TEST_F(Prepare, AFullDiskLeavesNothing) {
  const std::string path = folder / "out";
  const std::string error = error_on_full_disk(
      300000, [&] { prepare({example("hard-times.txt")}, *make_tokenizer("bytes"), path); });
  EXPECT_EQ(error, path + ": cannot write (File too large)");
  EXPECT_TRUE(folder.names().empty());
}

TEST_F(Prepare, MemoryDoesNotGrowWithTheText) {
  const std::string novel = slurp(example("pride-and-prejudice.txt"));
  const auto peak = [&](int copies, const Tokenizer& tokenizer) {
    std::string text;
    for (int i = 0; i < copies; ++i) text += novel;
    const std::string path = write_file(folder / "a.txt.zst", compressed(text, ".zst"));
    text = {};
    const test::PeakOfNew counter;
    const Prepared made = prepare({path}, tokenizer, folder / "out");
    EXPECT_EQ(made.text_bytes, static_cast<int64_t>(novel.size()) * copies);
    return counter.peak();
  };
  for (const auto& tokenizer : {make_tokenizer("bytes"), austen()}) {
    const int64_t small = peak(1, *tokenizer), large = peak(4, *tokenizer);
    EXPECT_GT(small, 1 << 16);
    EXPECT_LE(large, small + (1 << 18)) << tokenizer->spec();
  }
}

class Cache : public InFolder {};

TEST_F(Cache, IsReusedWhileNothingChanges) {
  const std::string input = write_file(folder / "in.txt", "some text"),
                    cache = folder / "new/cache";
  const auto bytes = make_tokenizer("bytes");
  const CachedTokens first = cached_token_file({input}, *bytes, cache);
  EXPECT_FALSE(first.reused);
  EXPECT_EQ(first.prepared.tokens, 10);
  EXPECT_THAT(first.path, HasSubstr("/new/cache/in-"));
  const CachedTokens again = cached_token_file({folder.path() + "/./i*.txt"}, *bytes, cache);
  EXPECT_TRUE(again.reused);
  EXPECT_EQ(again.path, first.path);

  const CachedTokens other_tokenizer = cached_token_file({input}, *austen(), cache);
  EXPECT_FALSE(other_tokenizer.reused);
  EXPECT_NE(other_tokenizer.path, first.path);
  EXPECT_NE(cached_token_file({input}, *bytes, cache, {.field = "body"}).path, first.path);

  const auto time = std::filesystem::last_write_time(input);
  std::filesystem::last_write_time(input, time + std::chrono::milliseconds(1));
  EXPECT_NE(cached_token_file({input}, *bytes, cache).path, first.path);
  std::filesystem::last_write_time(input, time);
  EXPECT_TRUE(cached_token_file({input}, *bytes, cache).reused);
  write_file(input, "other size");
  std::filesystem::last_write_time(input, time);
  EXPECT_NE(cached_token_file({input}, *bytes, cache).path, first.path);
}

// Every run on cached tokens repeats the warnings of the run that made them.
TEST_F(Cache, WarningsAreSaidAgain) {
  const std::string input = write_file(folder / "in.jsonl", "{\"text\": \"a\xFF\"}\nodd\n");
  const auto bytes = make_tokenizer("bytes");
  const auto cached = [&] {
    return cached_token_file({input}, *bytes, folder / "cache", {.strict = false});
  };
  const CachedTokens first = cached(), again = cached();
  ASSERT_TRUE(again.reused);
  EXPECT_THAT(again.prepared.warnings,
              ElementsAre(HasSubstr("1 of 2 lines cannot be read"),
                          input + ": line 1: invalid UTF-8 or NUL became U+FFFD"));
  EXPECT_EQ(again.prepared.warnings, first.prepared.warnings);
  EXPECT_EQ(again.prepared.replaced, 1);
  std::filesystem::remove(again.path + ".warnings");
  EXPECT_FALSE(cached().reused);
}

TEST_F(Cache, WhatWasNotUsedForAMonthIsRemoved) {
  const std::string cache = folder / "cache";
  const auto bytes = make_tokenizer("bytes");
  const auto cached = [&](const std::string& name) {
    if (!std::filesystem::exists(folder / name)) write_file(folder / name, "some text");
    return cached_token_file({folder / name}, *bytes, cache).path;
  };
  const auto age = [](const std::string& path, int days) {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::days(days));
  };
  const std::string old = cached("old.txt"), young = cached("young.txt"), used = cached("used.txt");
  const std::string own = write_file(cache + "/books.tokens", "not the cache's"),
                    like = write_file(cache + "/x-0123456789abcdeg.tokens", "nor is this");
  age(old, 31), age(young, 29), age(used, 31), age(own, 31), age(like, 31);
  EXPECT_EQ(cached("used.txt"), used);
  cached("new.txt");
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_FALSE(std::filesystem::exists(old + ".warnings"));
  for (const std::string& path : {young, used, own, like}) {
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  }
}

TEST_F(Cache, DamagedFilesAreMadeAnew) {
  const std::string input = write_file(folder / "in.txt", "some text"), cache = folder / "cache";
  const auto bytes = make_tokenizer("bytes");
  const std::string path = cached_token_file({input}, *bytes, cache).path;
  const std::string whole = slurp(path);
  for (const std::string& damaged :
       {whole.substr(0, 70), whole + "x", std::string("?"), std::string()}) {
    write_file(path, damaged);
    EXPECT_FALSE(cached_token_file({input}, *bytes, cache).reused);
    EXPECT_EQ(slurp(path), whole);
  }
}

TEST_F(Cache, TokenFilesPassThrough) {
  const std::string input = write_file(folder / "in.txt", "some text"), path = folder / "in.tokens";
  const auto bytes = make_tokenizer("bytes");
  prepare({input}, *bytes, path);
  const CachedTokens same = cached_token_file({path}, *bytes, folder / "cache");
  EXPECT_TRUE(same.reused);
  EXPECT_EQ(same.path, path);
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  EXPECT_THAT(one_line_error_of([&] { cached_token_file({path}, *austen(), folder / "cache"); }),
              HasSubstr("was made with the tokenizer `bytes`"));
  write_file(path, slurp(path).substr(0, 75));
  EXPECT_THAT(one_line_error_of([&] { cached_token_file({path}, *bytes, folder / "cache"); }),
              HasSubstr("cut short"));
}

TEST_F(Cache, BadFolders) {
  const std::string input = write_file(folder / "in.txt", "some text");
  const auto bytes = make_tokenizer("bytes");
  EXPECT_THAT(one_line_error_of([&] { cached_token_file({input}, *bytes, input + "/cache"); }),
              HasSubstr("in.txt/cache: the cache folder cannot be made"));
  EXPECT_THAT(
      one_line_error_of([&] { cached_token_file({folder / "no.txt"}, *bytes, folder / "cache"); }),
      HasSubstr("does not exist"));
  EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  EXPECT_FALSE(default_cache_folder().empty());
}

}  // namespace
}  // namespace compact
