// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/text_table.h"

#include <gmock/gmock.h>

#include "compact/data/files/text_lines.h"
#include "tests/data/files.h"

namespace compact {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  TextLines lines(path);
  std::vector<std::string> out;
  while (lines.next()) out.emplace_back(lines.line());
  return out;
}

TEST(TextLines, EndsMarksAndInvalidBytes) {
  const TextFolder folder;
  const auto of = [&](const std::string& bytes) {
    return lines_of(write_file(folder / "a.tsv", bytes));
  };
  EXPECT_THAT(of("a\nb"), ElementsAre("a", "b"));
  EXPECT_THAT(of("a\r\n\r\n b\n"), ElementsAre("a", "", " b"));
  EXPECT_THAT(of("\n"), ElementsAre(""));
  EXPECT_THAT(of("\xEF\xBB\xBF"
                 "a\n\xEF\xBB\xBF"
                 "b"),
              ElementsAre("a",
                          "\xEF\xBB\xBF"
                          "b"));
  EXPECT_THAT(of("a\rb\n"), ElementsAre("a\rb"));
  const std::string split = compressed("\xEF", ".gz") + compressed(
                                                            "\xBB\xBF"
                                                            "a\n",
                                                            ".gz");
  EXPECT_THAT(lines_of(write_file(folder / "a.tsv.gz", split)), ElementsAre("a"));
  EXPECT_THAT(of("caf\xE9 \xC3\n\xC3\xA9\n"),
              ElementsAre("caf\xEF\xBF\xBD \xEF\xBF\xBD", "\xC3\xA9"));
  // Lines that lie across blocks of 64 KiB.
  const std::string x(65535, 'x'), y(200000, 'y');
  EXPECT_THAT(of(x + "\n" + y + "\n\nz"), ElementsAre(x, y, "", "z"));
}

TEST(TextLines, RefusesWhatIsNoText) {
  const TextFolder folder;
  const auto fails = [&](const std::string& name, const std::string& bytes) {
    const std::string path = write_file(folder / name, bytes);
    return one_line_error_of([&] { lines_of(path); });
  };
  EXPECT_EQ(fails("a.tsv", std::string("a\nb\0c\n", 6)),
            folder / "a.tsv" + ": line 2 must be text, but byte 1 of it is NUL: a binary file");
  EXPECT_EQ(fails("a.tsv", std::string("\xEF\xBB\xBF"
                                       "a\0\n",
                                       6)),
            folder / "a.tsv" + ": line 1 must be text, but byte 4 of it is NUL: a binary file");
  EXPECT_THAT(fails("wide.tsv", "\xFE\xFF\x4E\x2D"), HasSubstr("iconv -f UTF-16"));
  // A line that never ends, out of a small file.
  const std::string bomb = compressed("ok\n" + std::string((size_t{1} << 26) + 1, 'x'), ".zst");
  EXPECT_LT(bomb.size(), 100000u);
  EXPECT_EQ(fails("bomb.tsv.zst", bomb),
            folder / "bomb.tsv.zst" + ": line 2 must be at most 64.0 MiB long");
  EXPECT_THAT(one_line_error_of([&] { TextLines(folder / "none.tsv"); }), HasSubstr("none.tsv"));
}

// Cells of chosen columns, "-" for a missing one, "#" before a number.
std::vector<std::string> rows_of(const std::string& path, const std::vector<std::string>& names,
                                 TableForm form = {}) {
  const auto table = open_table(path, form);
  table->choose(names);
  std::vector<std::string> out;
  std::vector<TableCell> cells;
  while (table->next(cells)) {
    std::string row;
    for (const TableCell& cell : cells) {
      row += cell.kind == TableCell::kMissing ? "-" : cell.kind == TableCell::kNumber ? "#" : "";
      row += cell.text + "|";
    }
    out.push_back(row);
  }
  return out;
}

class TextTable : public InFolder {};

TEST_F(TextTable, TabsEndColumns) {
  for (const std::string ending : {"", ".gz", ".xz", ".zst"}) {
    const std::string path = write_file(
        folder / "a.tsv" + ending,
        compressed("\xEF\xBB\xBFid\ttext\tlabel\r\n1\t\"a\t b \"\r\n\r\n2\t\t\n", ending));
    EXPECT_THAT(open_table(path)->names(), ElementsAre("id", "text", "label"));
    EXPECT_THAT(rows_of(path, {"label", "text"}), ElementsAre(" b \"|\"a|", "||"));
  }
  const std::string bare = write_file(folder / "bare.tsv", "x\ty\nz\tw");
  EXPECT_THAT(rows_of(bare, {"1", "0"}, {.header = false}), ElementsAre("y|x|", "w|z|"));
}

// As pandas writes what holds tabs or quotes. Files of GLUE have plain quotes.
TEST_F(TextTable, FieldsInQuotesOfATsv) {
  const std::string path = write_file(
      folder / "a.tsv", "text\tlabel\n\"a\tb \"\"c\"\"\"\t1\n\"d\" e\t2\n\"\t\"f\"\n\"g\t3\n");
  EXPECT_THAT(rows_of(path, {"text", "label"}),
              ElementsAre("a\tb \"c\"|1|", "\"d\" e|2|", "\"|f|", "\"g|3|"));
  EXPECT_THAT(rows_of(path, {"text"}, {.ragged = true, .tsv = true}),
              ElementsAre("\"a|", "\"d\" e|", "\"|", "\"g|"));
}

TEST_F(TextTable, FieldsOfSeveralLinesOfATsv) {
  const std::string path =
      write_file(folder / "a.tsv",
                 "a\tb\tc\n\"one\r\ntwo\n\"\t\"x\"\t1\n5\" x\t\"y\n\tz\"\t\"2\" w\n\"k\tl\tm\n");
  EXPECT_THAT(rows_of(path, {"a", "b", "c"}),
              ElementsAre("one\r\ntwo\n|x|1|", "5\" x|y\n\tz|\"2\" w|", "\"k|l|m|"));
}

TEST_F(TextTable, RowsOfOtherWidths) {
  const std::string path = write_file(folder / "a.tsv", "x\ty\n1\t2\n3\n4\t5\t6\n");
  EXPECT_THAT(rows_of(path, {"x", "y"}, {.ragged = true}), ElementsAre("1|2|", "3|-|", "4|5|"));
  EXPECT_EQ(one_line_error_of([&] { rows_of(path, {"x"}); }),
            path + ": line 3 must have 2 columns as the first line, has 1");
}

TEST_F(TextTable, ObjectsOfLines) {
  const std::string path = write_file(
      folder / "a.jsonl",
      "{\"text\": \"a\\tb\", \"label\": 1, \"in\": {\"label\": 7}, \"text\": \"c\\u0000d\"}\n\n"
      "{\"label\": -2.50, \"text\": null}\n {\"label\": \"x\"}\n");
  EXPECT_THAT(open_table(path)->names(), ElementsAre("text", "label", "in"));
  EXPECT_THAT(rows_of(path, {"text", "label"}),
              ElementsAre(std::string("c\0d|#1|", 7), "-|#-2.50|", "-|x|"));
  for (const auto& [line, rule] : std::vector<std::pair<std::string, std::string>>{
           {"{\"text\": true}",
            "line 2 field `text` must be a string or a number, is a truth value"},
           {"{\"text\": [\"a\"]}", "line 2 field `text` must be a string or a number, is an array"},
           {"[1]", "line 2 must be a JSON object, is an array"},
           {"7", "line 2 must be a JSON object, is a number"},
           {"{\"text\": 1", "line 2 must be JSON"}}) {
    const std::string bad = write_file(folder / "bad.jsonl", "{\"text\": \"a\"}\n" + line);
    EXPECT_THAT(one_line_error_of([&, b = bad] { rows_of(b, {"text"}); }), HasSubstr(rule));
  }
}

TEST_F(TextTable, RecordsOfRfc4180) {
  const std::string text =
      "\xEF\xBB\xBF"
      "\"id\",text,\"the \"\"label\"\"\"\r\n"
      "1,\"a, b\",x\r\n"
      "\r\n"
      "2,\"says \"\"no\"\"\",\"\"\r\n"
      "3,\"one\r\ntwo\n\nfour\", z \r\n"
      "4,,\"\"\"\"\n"
      "5,a\tb,'c'";
  const std::vector<std::string> names = {"text", "the \"label\"", "id"};
  for (const std::string ending : {"", ".gz", ".xz", ".zst"}) {
    const std::string path = write_file(folder / "a.csv" + ending, compressed(text, ending));
    EXPECT_THAT(open_table(path)->names(), ElementsAre("id", "text", "the \"label\""));
    EXPECT_THAT(rows_of(path, names),
                ElementsAre("a, b|x|1|", "says \"no\"||2|", "one\r\ntwo\n\nfour| z |3|", "|\"|4|",
                            "a\tb|'c'|5|"));
  }
  // A quoted name after the mark, one column, an end without a line's end.
  EXPECT_THAT(rows_of(write_file(folder / "one.csv", "x\n\"\"\n\"a\"\"\""), {"x"}),
              ElementsAre("|", "a\"|"));
  // A record that lies across blocks of 64 KiB.
  const std::string big(200000, '\n');
  EXPECT_THAT(rows_of(write_file(folder / "big.csv", "x,y\n\"" + big + "\",1\n2,3"), {"x", "y"}),
              ElementsAre(big + "|1|", "2|3|"));
}

TEST_F(TextTable, RefusesBrokenRecords) {
  const auto fails = [&](const std::string& bytes) {
    const std::string path = write_file(folder / "a.csv", "text,label\n\"two\nlines\",1\n" + bytes);
    const std::string error = one_line_error_of([&] { rows_of(path, {"text"}); });
    EXPECT_THAT(error, testing::StartsWith(path + ": line "));
    return error.substr(path.size() + 2);
  };
  EXPECT_EQ(fails("\"a,1\nb,2\n"), "line 4: a field in quotes is not closed before the file's end");
  EXPECT_THAT(fails("a\"b,1\n"), HasSubstr("line 4: a field that holds a quote must be in quotes"));
  EXPECT_THAT(fails("\"a\nb\" ,1\n"), HasSubstr("line 5: after a closing quote"));
  EXPECT_THAT(fails("\"a\"b\",1\n"), HasSubstr("line 4: after a closing quote"));
  EXPECT_EQ(
      fails("\"a\nb\"\n"),
      "line 4 must have 2 columns as the first line, has 1; the record begins at line 4: is a "
      "quote there not closed?");
  EXPECT_EQ(fails("a,1\nb,1,\n"), "line 5 must have 2 columns as the first line, has 3");
  EXPECT_THAT(fails("a" + std::string(5000, ',') + "\n"), HasSubstr("has 5001"));
  EXPECT_THAT(fails(std::string("a\0,1\n", 5)), HasSubstr("line 4 must be text"));
  const auto whole = [&](const std::string& bytes) {
    const std::string path = write_file(folder / "b.csv", bytes);
    return one_line_error_of([&] { rows_of(path, {"text"}); });
  };
  EXPECT_THAT(whole("text,label\n"), HasSubstr("b.csv: has a header and no rows"));
  EXPECT_THAT(whole("texts,label\na,1\n"), HasSubstr("did you mean `texts`?"));
  EXPECT_THAT(whole(std::string(1000, ',') + "\na\n"), HasSubstr("at most 1000 columns, has 1001"));
  // A quote that never closes, out of a small file.
  for (const char separator : {',', '\t'}) {
    std::string lines = std::string("text") + separator + "label\n\"";
    for (int i = 0; i < 70; ++i) lines += std::string(size_t{1} << 20, 'x') + "\n";
    const std::string bomb = write_file(
        folder / (separator == ',' ? "bomb.csv.zst" : "bomb.tsv.zst"), compressed(lines, ".zst"));
    EXPECT_EQ(one_line_error_of([&] { rows_of(bomb, {"text"}); }),
              bomb + ": line 2: a record must have at most 64.0 MiB, is a quote not closed?");
  }
}

TEST_F(TextTable, RefusesWhatIsNoTable) {
  const auto fails = [&](const std::string& name, const std::string& bytes,
                         const std::vector<std::string>& columns = {"text"}) {
    const std::string path = write_file(folder / name, bytes);
    return one_line_error_of([&] { rows_of(path, columns); });
  };
  EXPECT_THAT(fails("a.txt", "text\na\n"), HasSubstr("must end in .csv, .tsv or .jsonl"));
  EXPECT_THAT(fails("a.tsv", "text\n\n\r\n"), HasSubstr("a.tsv: has a header and no rows"));
  EXPECT_THAT(fails("a.tsv", "\n\n"), HasSubstr("a.tsv: has no lines"));
  EXPECT_THAT(fails("a.jsonl", " \n\t\n"), HasSubstr("a.jsonl: has no lines"));
  EXPECT_THAT(fails("a.tsv", "texts\na\n"), HasSubstr("no column `text`; did you mean `texts`?"));
  EXPECT_THAT(fails("a.tsv", "text\ttext\na\tb\n"), HasSubstr("has the column `text` twice"));
  EXPECT_THAT(fails("a.tsv", std::string(1000, '\t') + "\na\n"),
              HasSubstr("line 1 must have at most 1000 columns, has 1001"));
  EXPECT_THAT(fails("a.tsv", "text\na" + std::string(5000, '\t') + "\n"),
              HasSubstr("line 2 must have 1 columns as the first line, has 5001"));
}

}  // namespace
}  // namespace compact
