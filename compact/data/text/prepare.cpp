// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/prepare.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "compact/base/atomic_file.h"
#include "compact/base/check.h"
#include "compact/base/file.h"
#include "compact/base/text.h"
#include "compact/data/text/token_file.h"
#include "compact/data/tokenizers/prepared_folder.h"
#include "compact/data/tokenizers/stream_encoder.h"

namespace compact {
namespace {

namespace fs = std::filesystem;

void check_output(const std::string& output, const std::vector<std::string>& files) {
  std::error_code ignored;
  for (const std::string& file : files) {
    COMPACT_CHECK(!fs::equivalent(file, output, ignored), output,
                  ": is an input and cannot be the output, too");
  }
  COMPACT_CHECK(!fs::is_regular_file(output, ignored) || fs::file_size(output, ignored) == 0 ||
                    is_token_file(output),
                output, ": exists and is not a token file; remove it or name another output");
}

// Whether `path` holds a whole token file of this tokenizer.
bool usable(const std::string& path, const Tokenizer& tokenizer) {
  try {
    TokenFile(path).check_tokenizer(tokenizer);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// The file of a cached one's Prepared: `replaced`, then a warning a line.
std::string warnings_of(const std::string& cached) { return cached + ".warnings"; }

std::string cache_name(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                       const PrepareOptions& options) {
  std::string key = cat("4\n", tokenizer.hash(), '\n', options.field, '\n', options.strict, '\n');
  for (const std::string& file : files) {
    struct stat status {};
    COMPACT_CHECK(::stat(file.c_str(), &status) == 0, file, ": cannot be read");
    key += cat(fs::canonical(file).string(), '\n', status.st_size, '\n', status.st_mtim.tv_sec, '.',
               status.st_mtim.tv_nsec, '\n');
  }
  const std::string hash =
      formatted("%016llx", static_cast<unsigned long long>(XXH3_64bits(key.data(), key.size())));
  const std::string first = fs::path(without_compression(files[0])).stem().string();
  return first.substr(0, 64) + "-" + hash + ".tokens";
}

// Whether a file has a name that cache_name() gives; others in the folder are not ours.
bool is_cache_name(const std::string& name) {
  const std::string_view ending = ".tokens";
  if (!name.ends_with(ending) || name.size() < ending.size() + 17) return false;
  const std::string hash = name.substr(name.size() - ending.size() - 17, 17);
  return hash[0] == '-' && hash.find_first_not_of("0123456789abcdef", 1) == hash.npos;
}

// Removes files of ours that nothing has read for kKept. A run that has one open keeps it.
void remove_old(const fs::path& cache_folder) {
  constexpr auto kKept = std::chrono::days(30);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(cache_folder, ignored)) {
    if (!is_cache_name(entry.path().filename())) continue;
    const auto used = entry.last_write_time(ignored);
    if (!ignored && used + kKept < fs::file_time_type::clock::now()) {
      fs::remove(entry.path(), ignored);
      fs::remove(warnings_of(entry.path().string()), ignored);
    }
  }
}

}  // namespace

Prepared prepare(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                 const std::string& output, const PrepareOptions& options) {
  DocumentReader reader(inputs, options.field, options.progress, options.strict);
  check_output(output, reader.files());
  TokenWriter writer(output, tokenizer);
  StreamEncoder encoder(tokenizer);
  std::vector<uint32_t> tokens;
  DocumentPiece piece;
  Replaced replaced;
  int64_t counted = 0;
  while (reader.next(piece)) {
    tokens.clear();
    encoder.feed(piece.text, tokens);
    if (piece.last) {
      encoder.finish(tokens);
      const bool ended = !tokens.empty() && tokens.back() == tokenizer.end_of_text();
      if (!ended) tokens.push_back(tokenizer.end_of_text());
    }
    const int64_t now = reader.replaced().count + encoder.replaced();
    replaced.add(now - std::exchange(counted, now), reader.where());
    COMPACT_CHECK(!options.strict || now == 0, reader.where(), ": must be UTF-8, but ",
                  "there is invalid UTF-8 in the first ", format_count(reader.text_bytes()),
                  " bytes");
    writer.append(tokens);
  }
  writer.finish();
  std::vector<std::string> warnings = reader.warnings();
  if (replaced.count > 0) warnings.push_back(replaced.line());
  return {.files = static_cast<int64_t>(reader.files().size()),
          .documents = reader.documents(),
          .text_bytes = reader.text_bytes(),
          .tokens = writer.count(),
          .replaced = replaced.count,
          .warnings = std::move(warnings)};
}

CachedTokens cached_token_file(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                               const std::string& cache_folder, const PrepareOptions& options) {
  if (const std::string made = inputs.size() == 1 ? token_file_at(inputs[0]) : ""; !made.empty()) {
    const TokenFile file(made);
    file.check_tokenizer(tokenizer);
    COMPACT_CHECK(!file.info().samples, made, ": holds samples, not text: --task ",
                  file.info().pairs ? "preference" : "prompt-completion", " trains on it");
    return {.path = made, .reused = true, .prepared = {}};
  }
  const std::vector<std::string> files = expand_inputs(inputs);
  std::error_code error;
  fs::create_directories(cache_folder, error);
  COMPACT_CHECK(!error, cache_folder, ": the cache folder cannot be made: ", error.message());
  const std::string path =
      (fs::path(cache_folder) / cache_name(files, tokenizer, options)).string();
  const std::string said = warnings_of(path);
  if (is_file(said) && usable(path, tokenizer)) {
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // when it was last read
    std::vector<std::string> lines = split(read_text(said, int64_t{1} << 30), '\n');
    Prepared then{.replaced = parse_integer(lines.front()).value_or(0)};
    then.warnings.assign(lines.begin() + 1, lines.end());
    return {.path = path, .reused = true, .prepared = std::move(then)};
  }
  remove_old(cache_folder);
  fs::remove(path, error);  // anything else of our name
  CachedTokens made{.path = path, .prepared = prepare(files, tokenizer, path, options)};
  std::string lines = std::to_string(made.prepared.replaced);
  for (const std::string& warning : made.prepared.warnings) lines += "\n" + warning;
  write_file_atomically(said, lines);
  return made;
}

void check_inputs(const std::vector<std::string>& inputs) {
  if (inputs.size() != 1 || token_file_at(inputs[0]).empty()) expand_inputs(inputs);
}

std::string token_file_at(const std::string& path) {
  if (is_prepared_folder(path)) return (fs::path(path) / kPreparedTokens).string();
  return is_token_file(path) ? path : "";
}

std::string default_cache_folder() {
  const auto given = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string own = given("COMPACT_CACHE"); !own.empty()) return own;
  if (const std::string xdg = given("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/compact";
  const std::string home = given("HOME");
  return (home.empty() ? "" : home + "/") + ".cache/compact";
}

}  // namespace compact
