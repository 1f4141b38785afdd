// SPDX-License-Identifier: Apache-2.0
// Tables of labelled texts, GLUE's files, prompts with completions.
#include "compact/data/text/glue.h"
#include "compact/data/text/labelled_texts.h"
#include "compact/data/text/prompt_dataset.h"
#include "fuzz/fuzz.h"

FUZZ(bytes) {
  using namespace compact;
  const size_t kind = fuzz::choice(bytes, 7);
  fuzz::accepted([&] {
    if (kind < 2 || kind == 6) {
      const char* const name = kind == 6 ? "texts.csv" : kind ? "texts.jsonl" : "texts.tsv";
      const std::string path = fuzz::folder().file(name, bytes);
      const LabelledTexts texts = read_labelled_texts(path);
      fuzz::require(texts.first.size() == texts.labels.size());
    } else if (kind == 2) {
      read_labelled_texts(fuzz::folder().file("values.tsv", bytes), {.regression = true});
    } else if (kind == 3) {
      read_prompts(fuzz::folder().file("prompts.jsonl", bytes), *make_tokenizer("bytes"));
    } else {
      fuzz::folder().file("train.tsv", bytes);
      read_glue(glue_task(kind == 4 ? "cola" : "qqp"), fuzz::folder().path().string(), "train");
    }
  });
}
