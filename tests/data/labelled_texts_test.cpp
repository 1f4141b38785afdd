// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/labelled_texts.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/data/files.h"

namespace compact {
namespace {

TEST(LabelledTexts, SinglesAndPairs) {
  const TextFolder folder;
  const auto single = read_labelled_texts(
      write_file(folder / "a.tsv", "label\ttext\nneg\tbad \"film\"\npos\t a good one\nneg\t\n"));
  EXPECT_THAT(single.first, ElementsAre("bad \"film\"", " a good one", ""));
  EXPECT_THAT(single.second, IsEmpty());
  EXPECT_THAT(single.labels, ElementsAre(0, 1, 0));
  EXPECT_THAT(single.class_names, ElementsAre("neg", "pos"));
  EXPECT_THAT(single.warnings, IsEmpty());

  const auto pair = read_labelled_texts(write_file(
      folder / "b.jsonl.gz",
      compressed("{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": 2}\n"
                 "{\"sentence2\": \"d\", \"label\": \"10\", \"sentence1\": \"\\u00e9\"}\n",
                 ".gz")));
  EXPECT_THAT(pair.first, ElementsAre("a", "\xC3\xA9"));
  EXPECT_THAT(pair.second, ElementsAre("b", "d"));
  EXPECT_THAT(pair.labels, ElementsAre(0, 1));
  EXPECT_THAT(pair.class_names, ElementsAre("2", "10"));  // as numbers
}

TEST(LabelledTexts, FieldsOfSeveralLinesInTsv) {
  const TextFolder folder;
  const std::string head = "text\tlabel\n";
  const auto texts = read_labelled_texts(write_file(
      folder / "a.tsv", head + "\"one\ntwo \"\"2\"\"\n\nthree\"\tx\n\"four\ty\nfive\tx\n"));
  EXPECT_THAT(texts.first, ElementsAre("one\ntwo \"2\"\n\nthree", "\"four", "five"));
  EXPECT_THAT(texts.labels, ElementsAre(0, 1, 0));
  const std::string open = write_file(folder / "b.tsv", head + "a\tx\nb\ty\n\"c\nd\tx\n");
  EXPECT_EQ(one_line_error_of([&] { read_labelled_texts(open); }),
            open + ": line 4: a field in quotes is not closed before the file's end");
}

TEST(LabelledTexts, NamedFields) {
  const TextFolder folder;
  const std::string path = write_file(
      folder / "a.tsv", "sentence1\tsentence2\tq\ta\tkind\nx\ty\tQ\tA\t1\nx\ty\tR\tB\t0");
  const auto pair = read_labelled_texts(path, {.first = "q", .second = "a", .label = "kind"});
  EXPECT_THAT(pair.first, ElementsAre("Q", "R"));
  EXPECT_THAT(pair.second, ElementsAre("A", "B"));
  EXPECT_THAT(pair.labels, ElementsAre(1, 0));
  EXPECT_THAT(read_labelled_texts(path, {.first = "q", .label = "kind"}).second, IsEmpty());
  EXPECT_THAT(one_line_error_of([&] { read_labelled_texts(path, {.label = "kin"}); }),
              HasSubstr("no column `kin`; did you mean `kind`?"));
  const std::string none = write_file(folder / "b.tsv", "words\tlabel\na\t1\n");
  EXPECT_THAT(one_line_error_of([&] { read_labelled_texts(none); }),
              HasSubstr("none of the fields sentence1, sentence and text"));
}

TEST(LabelledTexts, SecondTextsAreNotLost) {
  const TextFolder folder;
  const std::string single = write_file(folder / "a.tsv", "text\tlabel\na\t0\nb\t1\n"),
                    pairs = write_file(folder / "b.tsv", "text\tsentence2\tlabel\na\tb\t0\n"),
                    mixed = write_file(folder / "c.jsonl",
                                       "{\"text\": \"a\", \"label\": 0}\n"
                                       "{\"text\": \"a\", \"sentence2\": \"b\", \"label\": 1}\n");
  const auto error = [](const std::string& path, const TextFields& fields) {
    return one_line_error_of([&] { read_labelled_texts(path, fields); });
  };
  EXPECT_THAT(error(single, {.pair = true}), HasSubstr("has no sentence2"));
  EXPECT_THAT(error(pairs, {.pair = false}), HasSubstr("has pairs (sentence2)"));
  EXPECT_THAT(error(mixed, {}), HasSubstr("line 2 has a field `sentence2`"));
  EXPECT_THAT(error(pairs, {.first = "text", .second = "text"}), HasSubstr("not both in `text`"));
  EXPECT_THAT(read_labelled_texts(single, {.pair = false}).first, ElementsAre("a", "b"));
}

TEST(LabelledTexts, GivenClasses) {
  const TextFolder folder;
  const std::string path = write_file(folder / "a.tsv", "text\tlabel\na\tb\nc\ta\nd\tb\n");
  const auto given = read_labelled_texts(path, {.class_names = {"c", "b", "a"}});
  EXPECT_THAT(given.labels, ElementsAre(1, 2, 1));
  EXPECT_THAT(given.class_names, ElementsAre("c", "b", "a"));
  EXPECT_EQ(one_line_error_of([&] {
              read_labelled_texts(path, {.class_names = {"b", "somewhat"}});
            }),
            path + ": line 3: the label must be one of 2 classes (did you mean `b`?), is `a`");
  EXPECT_THAT(one_line_error_of([&] {
                read_labelled_texts(path, {.class_names = {"b", "b"}});
              }),
              HasSubstr("the class `b` is given twice"));
  // A number is not a name: only where a layout says so.
  const std::string numbers = write_file(folder / "n.tsv", "text\tlabel\na\t0\n");
  EXPECT_THAT(one_line_error_of([&] {
                read_labelled_texts(numbers, {.class_names = {"a", "b"}});
              }),
              HasSubstr("is `0`"));
}

TEST(LabelledTexts, Regression) {
  const TextFolder folder;
  const std::string path = write_file(
      folder / "a.jsonl", "{\"text\":\"a\",\"label\":2.5}\n{\"text\":\"b\",\"label\":\"-1e-1\"}");
  const auto texts = read_labelled_texts(path, {.regression = true});
  EXPECT_THAT(texts.labels, ElementsAre(2.5f, -.1f));
  EXPECT_THAT(texts.class_names, IsEmpty());
  EXPECT_EQ(one_line_error_of([&] { read_labelled_texts(path); }),
            path + ": line 1: the label must be a text or an integer, is `2.5`");
  for (const char* bad : {"", "x", "nan", "inf", "1e39", "1,5"}) {
    const std::string other =
        write_file(folder / "b.tsv", std::string("text\tlabel\na\t") + bad + "\n");
    EXPECT_EQ(one_line_error_of([&] { read_labelled_texts(other, {.regression = true}); }),
              other + ": line 2: the label must be a finite number, is `" + bad + "`");
  }
}

// As tables of floats write whole numbers.
TEST(LabelledTexts, TakesWholeNumbersOfFloats) {
  const TextFolder folder;
  const auto of = [&](const std::string& rows, std::vector<std::string> classes = {}) {
    return read_labelled_texts(write_file(folder / "a.csv", "text,label\n" + rows),
                               {.class_names = std::move(classes)});
  };
  const auto some = of("a,0.0\nb,-1.0\nc,1\nd,2.0\ne,1.0\n");
  EXPECT_THAT(some.class_names, ElementsAre("0", "1", "2"));
  EXPECT_THAT(some.first, ElementsAre("a", "c", "d", "e"));
  EXPECT_THAT(some.labels, ElementsAre(0, 1, 2, 1));
  EXPECT_THAT(some.warnings, ElementsAre(HasSubstr("1 row was left out as unlabelled")));
  EXPECT_THAT(of("a,1.0\nb,0.0\n", {"0", "1"}).labels, ElementsAre(1, 0));
  EXPECT_THAT(of("a,1.0\nb,1.5\n").class_names, ElementsAre("1.0", "1.5"));  // names
  EXPECT_THAT(of("a,-0.0\nb,10.0\nc,0\n").class_names, ElementsAre("0", "10"));
  EXPECT_THAT(one_line_error_of([&] { of("a,1.0\nb,1\n"); }), HasSubstr("all are `1`"));
}

TEST(LabelledTexts, CodesAndQuotedNumbersAreNames) {
  const TextFolder folder;
  const auto of = [&](const std::string& rows, std::vector<std::string> classes = {}) {
    return read_labelled_texts(write_file(folder / "a.csv", "text,label\n" + rows),
                               {.class_names = std::move(classes)});
  };
  EXPECT_THAT(of("a,1\nb,01\nc,2\nd,002\n").class_names, ElementsAre("002", "01", "1", "2"));
  EXPECT_THAT(of("a,1.00\nb,10.00\nc,2.0\nd,1\n").class_names, ElementsAre("1", "2", "10"));
  EXPECT_THAT(of("a,-1\nb,-01\nc,2\nd,1\n").class_names, ElementsAre("-01", "-1", "1", "2"));
  EXPECT_THAT(one_line_error_of([&] { of("a,01\n", {"1", "2"}); }), HasSubstr("is `01`"));
  const auto json = [&](const std::string& first, const std::string& second) {
    return read_labelled_texts(
               write_file(folder / "a.jsonl", "{\"text\":\"a\",\"label\":" + first +
                                                  "}\n{\"text\":\"b\",\"label\":" + second + "}\n"))
        .class_names;
  };
  EXPECT_THAT(json("\"2\"", "\"2.0\""), ElementsAre("2", "2.0"));
  EXPECT_THAT(json("2.0", "\"10\""), ElementsAre("2", "10"));
}

// As data sets of Hugging Face mark rows without a label. Beside two other classes, as sentiments
// have them, or a negative one, -1 is a class.
TEST(LabelledTexts, LeavesOutUnlabelledRows) {
  const TextFolder folder;
  const auto of = [&](const std::string& labels, std::vector<std::string> classes = {}) {
    std::string text = "text,label\n", name = "a";
    for (size_t at = 0; at < labels.size(); at += 2) {
      text += name + "," + labels.substr(at, 2) + "\n";
      ++name[0];
    }
    return read_labelled_texts(write_file(folder / "a.csv", text),
                               {.class_names = std::move(classes)});
  };
  const auto some = of(" 0-1 1-1 2");
  EXPECT_THAT(some.class_names, ElementsAre("0", "1", "2"));
  EXPECT_THAT(some.first, ElementsAre("a", "c", "e"));
  EXPECT_THAT(some.labels, ElementsAre(0, 1, 2));
  EXPECT_THAT(some.warnings, ElementsAre(HasSubstr("a.csv: 2 rows were left out as unlabelled")));
  EXPECT_THAT(of(" 1-1 0", {"0", "1"}).labels, ElementsAre(1, 0));
  EXPECT_THAT(of("-1 1-1").labels, ElementsAre(0, 1, 0));
  EXPECT_THAT(of("-1 1-1").warnings, ElementsAre());
  const auto sentiments = of(" 0-1 1-1 0");
  EXPECT_THAT(sentiments.class_names, ElementsAre("-1", "0", "1"));
  EXPECT_THAT(sentiments.labels, ElementsAre(1, 0, 2, 0, 1));
  EXPECT_THAT(sentiments.warnings, ElementsAre(HasSubstr("a.csv: -1 is taken for a class of its")));
  EXPECT_THAT(of("-1 1-2 0").class_names, ElementsAre("-2", "-1", "0", "1"));
  // Classes are counted, not their spellings, and -1.0 is -1.
  const auto spelt = [&](const std::string& rows) {
    return read_labelled_texts(write_file(folder / "b.csv", "text,label\n" + rows));
  };
  const auto two = spelt("a,-1\nb,0\nc,0.0\nd,1\n");
  EXPECT_THAT(two.class_names, ElementsAre("-1", "0", "1"));
  EXPECT_THAT(two.labels, ElementsAre(0, 1, 1, 2));
  const auto both = spelt("a,-1\nb,-1.0\nc,0\nd,1\ne,2\n");
  EXPECT_THAT(both.class_names, ElementsAre("0", "1", "2"));
  EXPECT_THAT(both.first, ElementsAre("c", "d", "e"));
  EXPECT_THAT(both.warnings, ElementsAre(HasSubstr("b.csv: 2 rows were left out as unlabelled")));
}

TEST(LabelledTexts, WithoutLabels) {
  const TextFolder folder;
  const std::string path = write_file(folder / "a.tsv", "text\na\nb\n");
  EXPECT_THAT(one_line_error_of([&] { read_labelled_texts(path); }),
              HasSubstr("has no column `label`"));
  const auto texts = read_labelled_texts(path, {.need_labels = false, .class_names = {"x", "y"}});
  ASSERT_EQ(texts.labels.size(), 2u);
  EXPECT_TRUE(std::isnan(texts.labels[0]) && std::isnan(texts.labels[1]));
  EXPECT_THAT(texts.class_names, ElementsAre("x", "y"));
}

TEST(LabelledTexts, RefusesBrokenRows) {
  const TextFolder folder;
  const auto fails = [&](const std::string& name, const std::string& bytes) {
    const std::string path = write_file(folder / name, bytes);
    return one_line_error_of([&] { read_labelled_texts(path); });
  };
  EXPECT_THAT(fails("a.jsonl", "{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\"}"),
              HasSubstr("a.jsonl: line 2 must have a text and a label"));
  EXPECT_THAT(fails("a.jsonl", "{\"text\":null,\"label\":1}"),
              HasSubstr("line 1 must have a text"));
  EXPECT_THAT(fails("a.tsv", "text\tlabel\na\t1\nb\n"), HasSubstr("line 3 must have 2 columns"));
  EXPECT_THAT(fails("a.tsv", "text\tlabel\na\t \n"),
              HasSubstr("line 2: the label must be a class"));
  EXPECT_THAT(fails("a.tsv", "text\tlabel\na\tx\nb\tx\n"),
              HasSubstr("labels must be of at least two classes, all are `x`"));
  std::string many = "text\tlabel\n";
  for (int i = 0; i <= 65536; ++i) many += "a\t" + std::to_string(i) + "\n";
  EXPECT_THAT(fails("many.tsv", many), HasSubstr("line 65538: there may be at most 65536 classes"));
}

// One row of many that cannot be read is left out and named; of more than 5 % the first is said.
TEST(LabelledTexts, LeavesOutOddRows) {
  const TextFolder folder;
  const auto of = [&](const std::string& name, const std::string& bytes) {
    return read_labelled_texts(write_file(folder / name, bytes), {.strict = false});
  };
  const auto csv =
      of("a.csv", "text,label\na,0\nb\"c,1\nd,1\nf,0,1\ng,1\nh,0\n" + std::string("i\0,1\n", 5));
  EXPECT_THAT(csv.first, ElementsAre("a", "d", "g", "h"));
  EXPECT_THAT(csv.labels, ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(
      csv.warnings,
      ElementsAre(HasSubstr("a.csv: 3 of 7 rows cannot be read and were left out (--strict true "
                            "ends the run); the first: " +
                            folder.path() + "/a.csv: line 3: a field that holds a quote")));
  EXPECT_THAT(of("b.csv", "text,label\na\"b,0\nc,0\nd,1\n").first, ElementsAre("c", "d"));
  EXPECT_THAT(
      of("b.jsonl", "odd\n{\"text\":\"c\",\"label\":0}\n{\"text\":\"d\",\"label\":1}").warnings,
      ElementsAre(HasSubstr("1 of 3 rows cannot be read and were left out")));
  const auto lines = of("a.jsonl", R"({"text": "a\ud83d", "label": 0}
{"text": "b\ud83d\ude00", "label": 1}
{"text": "c", "label": 1
{"text": ["d"], "label": 1}
)");
  EXPECT_THAT(lines.first, ElementsAre("a\xEF\xBF\xBD", "b\xF0\x9F\x98\x80"));
  EXPECT_THAT(lines.warnings, ElementsAre(HasSubstr("2 of 4 rows cannot be read"),
                                          HasSubstr("a.jsonl: line 1: invalid UTF-8")));
  EXPECT_THAT(one_line_error_of([&] { of("a.tsv", "text\tlabel\na\t0\nb\nc\n"); }),
              HasSubstr("line 3 must have 2 columns as the first line, has 1; 2 of 3 rows"));
  const auto some = [&](int good, int bad) {
    std::string text = "text\tlabel\n";
    for (int i = 0; i < good; ++i) text += i % 2 == 0 ? "a\t0\n" : "b\t1\n";
    for (int i = 0; i < bad; ++i) text += "b\n";
    return of("many.tsv", text).labels.size();
  };
  EXPECT_EQ(some(3, 3), 3u);
  EXPECT_EQ(some(95, 5), 95u);
  EXPECT_THAT(
      one_line_error_of([&] { some(94, 6); }),
      HasSubstr("6 of 100 rows cannot be read: without --strict true 5 %, or 3, may be left"));
}

// A quote that is not closed takes the rows after it, of which none may be lost in silence.
TEST(LabelledTexts, RefusesRecordsThatNeverEnd) {
  const TextFolder folder;
  for (const std::string comma : {",", "\t"}) {
    const auto fails = [&](const std::string& row, const std::string& closed) {
      std::string text = "text" + comma + "label\na" + comma + "0\n" + row;
      for (int i = 0; i < 41; ++i) text += "b" + comma + "1\n";
      text += closed;
      for (int i = 0; i < 70; ++i) text += "c" + comma + "0\n";
      const std::string path = write_file(folder / (comma == "," ? "a.csv" : "a.tsv"), text);
      return one_line_error_of([&] { read_labelled_texts(path, {.strict = false}); });
    };
    const std::string open = comma == "," ? "\"five inch screen,1\n" : "\"five inch screen\n",
                      nul(1, '\0');
    EXPECT_THAT(fails(open, "\"quoted\"" + comma + "0\n"),
                AllOf(HasSubstr("line 45: after a closing quote"),
                      HasSubstr("the record begins at line 3: is a quote there not closed?")));
    EXPECT_THAT(fails(open, "x" + comma + "\"" + comma + "0" + comma + "1\n"),
                HasSubstr("line 3 must have 2 columns"));
    EXPECT_THAT(fails(open, "a\n"), HasSubstr("line 3: a field in quotes is not closed"));
    // A NUL within or before the end of such a line.
    EXPECT_THAT(fails("\"a\nb" + nul + "\nc\"" + comma + "1\n", ""),
                HasSubstr("line 4 must be text"));
    EXPECT_THAT(fails("\"a" + nul + "\nb\nc\"" + comma + "1\n", ""),
                HasSubstr("line 3 must be text"));
  }
}

TEST(LabelledTexts, WarnsOfInvalidBytes) {
  const TextFolder folder;
  const std::string path =
      write_file(folder / "a.tsv", "text\tlabel\na\t1\ncaf\xE9\t0\n\xFF\xFF\t1\n");
  const auto texts = read_labelled_texts(path, {.strict = false});
  EXPECT_THAT(texts.first, ElementsAre("a", "caf\xEF\xBF\xBD", "\xEF\xBF\xBD\xEF\xBF\xBD"));
  EXPECT_THAT(
      texts.warnings,
      ElementsAre(path + ": line 3: invalid UTF-8 or NUL became U+FFFD, as in 2 other places"));
  EXPECT_EQ(one_line_error_of([&] { read_labelled_texts(path); }),
            path + ": line 3 must be UTF-8, but byte 3 of it is not");
}

}  // namespace
}  // namespace compact
