// SPDX-License-Identifier: Apache-2.0
#include "compact/data/files/reader.h"

#include <gmock/gmock.h>

#include "tests/data/files.h"

namespace compact {
namespace {

const char* const kEndings[] = {"", ".gz", ".xz", ".zst"};

std::vector<std::string> documents(const std::vector<std::string>& inputs,
                                   const std::string& field = "text") {
  DocumentReader reader(inputs, field);
  std::vector<std::string> all;
  std::string document;
  DocumentPiece piece;
  while (reader.next(piece)) {
    EXPECT_LE(piece.text.size(), size_t{1} << 26);
    document += piece.text;
    if (piece.last) all.push_back(std::exchange(document, {}));
  }
  EXPECT_TRUE(document.empty()) << "the last piece must be marked";
  EXPECT_EQ(reader.documents(), static_cast<int64_t>(all.size()));
  return all;
}

// Text that no compressor makes small, so that every buffer is refilled.
std::string noise(size_t size) {
  std::string text(size, ' ');
  uint64_t state = 1;
  for (char& c : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>('!' + (state >> 33) % 90);
  }
  return text;
}

class Reader : public InFolder {};

TEST_F(Reader, TextOfEverySizeInEveryCompression) {
  for (const std::string ending : kEndings) {
    for (const size_t size : {1, 2, 65535, 65536, 65537, 300001}) {
      const std::string text = noise(size);
      const std::string path = write_file(folder / ("a.txt" + ending), compressed(text, ending));
      EXPECT_THAT(documents({path}), ElementsAre(text)) << path << " " << size;
    }
  }
}

TEST_F(Reader, StreamsJoinedEndToEndAreOneText) {
  for (const std::string ending : {".gz", ".xz", ".zst"}) {
    const std::string a = noise(70000), b = noise(3);
    const std::string path =
        write_file(folder / ("a.txt" + ending), compressed(a, ending) + compressed(b, ending));
    EXPECT_THAT(documents({path}), ElementsAre(a + b)) << path;
  }
}

// gzip ignores zeros after its data, as blocks of a tape leave them, and warns of anything else.
TEST_F(Reader, OnlyZerosMayFollowGzipData) {
  const std::string a = noise(70000), gz = compressed(a, ".gz");
  const auto of = [&](const std::string& bytes) {
    return documents({write_file(folder / "a.txt.gz", bytes)});
  };
  const auto error = [&](const std::string& bytes) {
    return one_line_error_of([&] { of(bytes); });
  };
  for (const size_t zeros : {1, 511, 70000}) {
    EXPECT_THAT(of(gz + std::string(zeros, '\0')), ElementsAre(a)) << zeros;
    EXPECT_THAT(of(gz + gz + std::string(zeros, '\0')), ElementsAre(a + a)) << zeros;
    EXPECT_EQ(error(gz + std::string(zeros, '\0') + "x" + gz),
              folder / "a.txt.gz" + ": gzip data is corrupt at byte " +
                  std::to_string(gz.size() + zeros) +
                  ": what follows its end is neither more of it nor zeros");
  }
  EXPECT_THAT(error(gz + "x"), HasSubstr("corrupt at byte " + std::to_string(gz.size()) + ":"));
  EXPECT_THAT(error(gz + "\x1f"), HasSubstr("gzip data is cut short"));
  EXPECT_THAT(error(gz + "\x1fno header"), HasSubstr("gzip data is corrupt"));
  for (const std::string ending : {".xz", ".zst"}) {
    const std::string path = write_file(folder / "b.txt" + ending, compressed(a, ending) + "xxxx");
    EXPECT_THAT(one_line_error_of([&] { documents({path}); }), HasSubstr(path + ": ")) << ending;
  }
}

TEST_F(Reader, LinesInEveryCompression) {
  const std::string big = noise(200000);
  std::string escaped;
  for (const char c : big)
    escaped += c == '"' || c == '\\' ? std::string("\\") + c : std::string{c};
  const std::string lines =
      "{\"text\": \"one\"}\n\n  \r\n{\"id\": [1, {\"text\": 5}], \"text\": \"tw\\u00f6\\n\"}\r\n"
      "{\"text\": \"" +
      escaped + "\"}\n{\"text\": \"\", \"x\": null}";
  for (const std::string ending : kEndings) {
    const std::string path = write_file(folder / ("a.jsonl" + ending), compressed(lines, ending));
    EXPECT_THAT(documents({path}), ElementsAre("one", "tw\xC3\xB6\n", big, ""));
  }
}

TEST_F(Reader, OtherFieldAndRepeatedKey) {
  const std::string path =
      write_file(folder / "a.jsonl",
                 "{\"body\": \"b\", \"text\": \"t\"}\n{\"body\": \"1\", \"body\": \"2\"}\n");
  EXPECT_THAT(documents({path}, "body"), ElementsAre("b", "2"));
}

TEST_F(Reader, InvalidUtf8InJsonIsReplacedAndCounted) {
  const std::string path =
      write_file(folder / "a.jsonl", "{\"text\": \"a\xFFz\"}\n{\"text\": \"\xE2\x82\"}\n");
  DocumentReader reader({path}, "text", {}, /*strict=*/false);
  DocumentPiece piece;
  ASSERT_TRUE(reader.next(piece));
  EXPECT_EQ(piece.text, "a\xEF\xBF\xBDz");
  ASSERT_TRUE(reader.next(piece));
  EXPECT_EQ(piece.text, "\xEF\xBF\xBD");
  EXPECT_FALSE(reader.next(piece));
  EXPECT_EQ(reader.replaced().line(),
            path + ": line 1: invalid UTF-8 or NUL became U+FFFD, as in 1 other place");
  EXPECT_EQ(one_line_error_of([&] { documents({path}); }),
            path + ": line 1 must be UTF-8, but byte 11 of it is not");
}

TEST_F(Reader, BadLinesNameFileAndLine) {
  const std::string good = "{\"text\": \"fine\"}\n\n";
  const struct {
    const char *line, *message;
  } cases[] = {
      {"{\"text\": \"cut", "must be JSON"},
      {"{\"text\": \"a\"} more", "must be JSON"},
      {"not json\x01\x02", "must be JSON"},
      {"{\"text\": \"\\ud800\"}", "must be JSON"},
      {"[\"text\", \"a\"]", "must be a JSON object, is an array"},
      {"17", "must be a JSON object, is a number"},
      {"{\"texts\": \"a\"}", "has no field `text`; did you mean `texts`?"},
      {"{}", "has no field `text`"},
      {"{\"a\": {\"text\": \"inner\"}}", "has no field `text`"},
      {"{\"text\": 5}", "field `text` must be a string, is a number"},
      {"{\"text\": [\"a\"]}", "field `text` must be a string, is an array"},
      {"{\"text\": null}", "field `text` must be a string, is null"},
  };
  for (const auto& c : cases) {
    const std::string path = write_file(folder / "a.jsonl", good + c.line + "\n");
    const std::string error = one_line_error_of([&] { documents({path}); });
    EXPECT_THAT(error, StartsWith(path + ": line 3 "));
    EXPECT_THAT(error, HasSubstr(c.message));
  }
}

// One odd byte or line of a large set costs that place alone, and is counted.
TEST_F(Reader, OddLinesAreLeftOutAndNamed) {
  const std::string nul(1, '\0'), unknown = "\xEF\xBF\xBD";
  const std::string lines =
      write_file(folder / "a.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}\nodd\n" +
                                         std::string(R"({"text": "b\ud800"})") +
                                         "\n{\"text\": \"c" + nul + "\"}\n");
  const std::string text = write_file(folder / "b.txt", "\xEF\xBB\xBF" + std::string(200, 'x') +
                                                            nul + std::string(70000, 'y') + nul);
  DocumentReader reader({lines, text}, "text", {}, /*strict=*/false);
  std::vector<std::string> all(1);
  for (DocumentPiece piece; reader.next(piece);) {
    all.back() += piece.text;
    if (piece.last) all.emplace_back();
  }
  EXPECT_THAT(all,
              ElementsAre("a", "b" + unknown, "c" + unknown,
                          std::string(200, 'x') + unknown + std::string(70000, 'y') + unknown, ""));
  EXPECT_EQ(reader.replaced().count, 4);
  EXPECT_THAT(
      reader.warnings(),
      ElementsAre(AllOf(StartsWith(lines + ": 1 of 4 lines cannot be read and were left out"),
                        HasSubstr("a.jsonl: line 2 must be JSON"))));
  EXPECT_THAT(one_line_error_of([&] { documents({text}); }), HasSubstr("byte 203 is NUL"));
  const std::string wide = write_file(folder / "c.txt", "\xFF\xFE" + std::string("a\0b\0", 4));
  DocumentReader utf16({wide}, "text", {}, /*strict=*/false);
  DocumentPiece piece;
  EXPECT_THAT(one_line_error_of([&] { utf16.next(piece); }), HasSubstr("iconv -f UTF-16"));
  // Chinese has hardly a NUL there.
  for (const bool strict : {false, true}) {
    DocumentReader chinese({write_file(folder / "d.txt", "\xFF\xFE\x2D\x4E\x87\x65")}, "text", {},
                           strict);
    EXPECT_THAT(one_line_error_of([&] { chinese.next(piece); }), HasSubstr("iconv -f UTF-16"));
  }
}

TEST_F(Reader, DeepNestingIsNoProblem) {
  const std::string deep(1 << 20, '[');
  const std::string path =
      write_file(folder / "a.jsonl", "{\"text\": \"a\", \"b\": " + deep + "\n");
  EXPECT_THAT(one_line_error_of([&] { documents({path}); }), HasSubstr("line 1 must be JSON"));
}

TEST_F(Reader, CompressedDataCutAnywhereIsAnError) {
  const std::string text = noise(3000);
  for (const std::string ending : {".gz", ".xz", ".zst"}) {
    const std::string whole = compressed(text, ending);
    const std::string path = folder / ("a.txt" + ending);
    for (size_t size = 0; size < whole.size();
         size += size < 100 || size + 100 > whole.size() ? 1 : 97) {
      write_file(path, whole.substr(0, size));
      const std::string error = one_line_error_of([&] { documents({path}); });
      EXPECT_THAT(error, StartsWith(path + ": "));
      EXPECT_THAT(error, HasSubstr(size == 0 ? "is empty" : "data is cut short")) << size;
    }
  }
}

TEST_F(Reader, CorruptCompressedDataIsAnError) {
  for (const std::string ending : {".gz", ".xz", ".zst"}) {
    const std::string path = folder / ("a.txt" + ending);
    write_file(path, "this is no compressed file at all, whatever its name says");
    EXPECT_THAT(one_line_error_of([&] { documents({path}); }), HasSubstr("data is corrupt"));
    std::string bytes = compressed(noise(3000), ending);
    bytes[bytes.size() / 2] ^= 0x10;
    write_file(path, bytes);
    EXPECT_THAT(one_line_error_of([&] { documents({path}); }), HasSubstr("data is corrupt"));
    write_file(path, compressed("a", ending) + "garbage after the end");
    EXPECT_THAT(one_line_error_of([&] { documents({path}); }), HasSubstr("data is corrupt"));
    write_file(path, compressed("", ending));
    EXPECT_THAT(one_line_error_of([&] { documents({path}); }),
                HasSubstr("is empty after decompression"));
  }
}

TEST_F(Reader, BadInputsSayPathAndRule) {
  const auto fails = [&](const std::vector<std::string>& inputs) {
    return one_line_error_of([&] { documents(inputs); });
  };
  const std::string missing = folder / "missing.txt", empty = write_file(folder / "empty.txt", "");
  EXPECT_EQ(fails({missing}), missing + ": does not exist");
  EXPECT_EQ(fails({empty}), empty + ": is empty (0 bytes)");
  const std::string bare = folder / "bare";
  std::filesystem::create_directories(bare + "/deep");
  EXPECT_EQ(fails({bare}), bare + ": the folder holds no .txt and no .jsonl file");
  EXPECT_THAT(fails({folder / "*.jsonl"}), HasSubstr("the pattern matches no file"));
  EXPECT_THAT(fails({}), HasSubstr("at least one input file"));
  EXPECT_THAT(fails({write_file(folder / "a.pdf", "x")}), HasSubstr("must end in .txt or .jsonl"));
  EXPECT_THAT(fails({write_file(folder / "a.gz", "x")}), HasSubstr("must end in .txt or .jsonl"));
  EXPECT_THAT(fails({write_file(folder / "b.txt", std::string("ab\0c", 4))}),
              HasSubstr("b.txt: must be text, but byte 2 is NUL: a binary file"));
  EXPECT_THAT(fails({write_file(folder / "blank.jsonl", "\n \n")}), HasSubstr("only blank lines"));
  const std::string good = write_file(folder / "good.txt", "x");
  EXPECT_THAT(fails({good, folder / "g*.txt"}), HasSubstr("good.txt: is given twice"));
  ASSERT_EQ(::system(("mkfifo " + folder.path() + "/pipe.txt").c_str()), 0);
  EXPECT_THAT(fails({folder / "pipe.txt"}), HasSubstr("must be a regular file"));
}

TEST_F(Reader, PatternsAreSortedAndInputsKeepTheirOrder) {
  for (const char* name : {"b2.txt", "b10.txt", "B1.txt", "c.jsonl", "a[1].txt"}) {
    const std::string text = name;
    write_file(folder / text, text.ends_with("jsonl") ? "{\"text\":\"" + text + "\"}" : text);
  }
  EXPECT_THAT(documents({folder / "c.*", folder / "[bB]*.txt", folder / "a[1].txt"}),
              ElementsAre("c.jsonl", "B1.txt", "b10.txt", "b2.txt", "a[1].txt"));
  EXPECT_THAT(documents({folder / "{b2.txt,c.jsonl}"}), ElementsAre("b2.txt", "c.jsonl"));
}

// Files of other kinds in it are left alone.
TEST_F(Reader, FoldersAreWalked) {
  std::filesystem::create_directories(folder / "a{1}/deep");
  for (const char* name : {"a{1}/b.txt", "a{1}/deep/a.txt", "a{1}/README.md", "c.txt"}) {
    write_file(folder / name, name);
  }
  EXPECT_THAT(documents({folder / "c.txt", folder / "a{1}"}),
              ElementsAre("c.txt", "a{1}/b.txt", "a{1}/deep/a.txt"));
}

// As in a shell with globstar: at any depth, also none; hidden folders are left alone.
TEST_F(Reader, PatternsWalkFolders) {
  for (const char* name : {"a/1.txt", "a/b/2.txt", "a/b/c/3.txt", "a/.git/4.txt", "d/5.txt"}) {
    const std::string path = folder / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_file(path, name);
  }
  EXPECT_THAT(documents({folder / "a/**/*.txt"}),
              ElementsAre("a/1.txt", "a/b/2.txt", "a/b/c/3.txt"));
  EXPECT_THAT(documents({folder / "{a,d}/**/[25].txt"}), ElementsAre("a/b/2.txt", "d/5.txt"));
  EXPECT_THAT(documents({folder / "**/c/**"}), ElementsAre("a/b/c/3.txt"));
  EXPECT_THAT(documents({folder / "a/**/b/**/3.txt"}), ElementsAre("a/b/c/3.txt"));
  // Names of folders that were found are no patterns.
  const std::vector<std::string> odd = {R"(e/*\6.txt)",  "e/[1]/6.txt",     "e/[1]/x/6.txt",
                                        R"(e/\?/6.txt)", "e/vol [1]/6.txt", "e/{x,y}/6.txt",
                                        "e/~/6.txt"};
  for (const std::string& name : odd) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    write_file(folder / name, name);
  }
  EXPECT_THAT(documents({folder / "e/**/*.txt"}), testing::UnorderedElementsAreArray(odd));
  EXPECT_THAT(documents({folder / "e/**/6.txt"}), testing::SizeIs(odd.size() - 1));
}

TEST_F(Reader, ProgressRisesToTheTotal) {
  const std::string a = write_file(folder / "a.txt", noise(200000));
  const std::string b = write_file(folder / "b.txt.xz", compressed(noise(100000), ".xz"));
  int64_t before = 0, last_total = 0;
  DocumentReader reader({a, b}, "text", [&](int64_t done, int64_t total) {
    EXPECT_GE(done, before);
    EXPECT_LE(done, total);
    before = done;
    last_total = total;
  });
  DocumentPiece piece;
  while (reader.next(piece)) {
  }
  EXPECT_EQ(last_total,
            static_cast<int64_t>(std::filesystem::file_size(a) + std::filesystem::file_size(b)));
  EXPECT_EQ(before, last_total);
  EXPECT_EQ(reader.text_bytes(), 300000);
}

}  // namespace
}  // namespace compact
