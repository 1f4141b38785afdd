// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/sentencepiece_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "compact/base/check.h"

namespace compact {
namespace {

// Fields of the messages ModelProto, NormalizerSpec and TrainerSpec of sentencepiece_model.proto.
constexpr uint64_t kTrainer = 2, kNormalizer = 3, kSelfTest = 4, kDenormalizer = 5, kCharsMap = 2,
                   kModelType = 3, kSpaceAfter = 24, kByteFallback = 35, kPrefix = 3,
                   kSqueezesSpaces = 4, kMarksSpaces = 5;
// Fields of a piece.
constexpr uint64_t kPiece = 1, kText = 1, kType = 3, kUserDefined = 4;

// A message of protocol buffers, field by field.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& path) : left_(bytes), path_(path) {}

  // Goes to the next field; false at the end.
  bool next() {
    if (left_.empty()) return false;
    const std::string_view before = left_;
    const uint64_t tag = varint();
    COMPACT_CHECK(tag >> 3 >= 1 && tag <= UINT32_MAX, path_, kBroken, "a field's number");
    number = tag >> 3;
    content = {};
    value = 0;
    switch (tag & 7) {
      case 0:
        value = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        content = take(varint());
        break;
      case 5:
        take(4);
        break;
      default:
        fail(path_, kBroken, "a field of type ", tag & 7);
    }
    whole = before.substr(0, before.size() - left_.size());
    return true;
  }

  uint64_t number = 0;
  std::string_view content;  // of a field that has a length
  uint64_t value = 0;        // of one that is a number of any length
  std::string_view whole;    // all of its bytes

 private:
  static constexpr const char* kBroken = ": must be a SentencePiece model, is broken at ";

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail(path_, kBroken, "a number of over ten bytes");
  }

  std::string_view take(uint64_t count) {
    COMPACT_CHECK(count <= left_.size(), path_, kBroken, "a field of ", count, " bytes where ",
                  left_.size(), " are left");
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  std::string_view left_;
  const std::string& path_;
};

// A double array (Aoe 1989) in the layout of the darts-clone library: of a unit's 32 bits the lower
// eight and the highest are its label, bit 8 says that a value stands at its base, bit 9 that its
// offset is in steps of 256, the others are the offset. The base is the offset xor its own place,
// its child by a byte the base xor the byte.
class DoubleArray {
 public:
  DoubleArray(std::string_view bytes, size_t values) : units_(bytes.size() / 4), values_(values) {
    std::memcpy(units_.data(), bytes.data(), units_.size() * 4);
  }

  // The fault of the nodes that can be reached from the root; empty: there is none.
  std::string fault() {
    most_.assign(units_.size(), kUnseen);
    std::vector<Place> path;
    if (std::string wrong = enter(0, path); !wrong.empty()) return wrong;
    while (!path.empty()) {
      Place& here = path.back();
      if (here.byte == 256) {
        const size_t done = here.at;
        most_[done] = here.values;
        path.pop_back();
        if (path.empty()) return {};
        if (std::string wrong = add(path.back(), most_[done]); !wrong.empty()) return wrong;
        continue;
      }
      const auto byte = static_cast<uint32_t>(here.byte++);
      const size_t child = here.base ^ byte;
      if ((units_[child] & kLabel) != byte) continue;
      if (most_[child] == kOnPath) return cat("a way that comes back to unit ", child);
      std::string wrong = most_[child] == kUnseen ? enter(child, path) : add(here, most_[child]);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

 private:
  static constexpr uint32_t kLabel = 0x800000FF;
  static constexpr int kUnseen = -1, kOnPath = -2;
  // The most values on the path of one text for which the library has room.
  static constexpr int kMostValues = 32;

  struct Place {
    size_t at, base;
    int byte = 0;    // the next to be tried
    int values = 0;  // the most on a way from here
  };

  std::string enter(size_t at, std::vector<Place>& path) {
    const uint32_t unit = units_[at];
    const size_t base = at ^ ((unit >> 10) << ((unit & 0x200) >> 6));
    if ((base | 255) >= units_.size()) return cat("unit ", at, ", which leads out of the table");
    const bool value = (unit >> 8 & 1) != 0;
    if (value && (units_[base] & 0x7FFFFFFF) >= values_) {
      return cat("unit ", at, ", whose value lies outside of the replacements");
    }
    most_[at] = kOnPath;
    path.push_back({.at = at, .base = base, .values = value ? 1 : 0});
    return {};
  }

  // `below`: the most values on a path from a child.
  std::string add(Place& place, int below) const {
    const int own = (units_[place.at] >> 8 & 1) != 0 ? 1 : 0;
    place.values = std::max(place.values, own + below);
    if (place.values > kMostValues) return cat("over ", kMostValues, " rules that begin alike");
    return {};
  }

  std::vector<uint32_t> units_;
  size_t values_;
  std::vector<int> most_;  // by unit, once it is known
};

constexpr uint32_t kLeastTable = 256 * 4;  // a child for every byte

// Four bytes of the table's length, the table, the replacements one after another.
void check_rules(std::string_view map, const std::string& path) {
  if (map.empty()) return;
  const auto check = [&](bool holds, const std::string& what) {
    COMPACT_CHECK(holds, path, ": the model's rules of normalization are broken: ", what);
  };
  check(map.size() > 4, cat(map.size(), " bytes"));
  uint32_t length = 0;
  std::memcpy(&length, map.data(), 4);
  map.remove_prefix(4);
  check(length % 4 == 0 && length >= kLeastTable && length < map.size(),
        cat("a table of ", length, " bytes within ", map.size()));
  check(map.back() == '\0', "the last replacement has no end");
  const std::string fault = DoubleArray(map.substr(0, length), map.size() - length).fault();
  check(fault.empty(), fault);
}

}  // namespace

void check_sentencepiece_model(std::string_view model, const std::string& path) {
  Fields message(model, path);
  while (message.next()) {
    if (message.number != kNormalizer && message.number != kDenormalizer) continue;
    Fields normalizer(message.content, path);
    while (normalizer.next()) {
      if (normalizer.number == kCharsMap) check_rules(normalizer.content, path);
    }
  }
}

SentencePieceSettings sentencepiece_settings(std::string_view model, const std::string& path) {
  SentencePieceSettings settings;
  for (Fields fields(model, path); fields.next();) {
    if (fields.number == kPiece) {
      std::string_view text;
      uint64_t type = 0;
      for (Fields piece(fields.content, path); piece.next();) {
        if (piece.number == kText) text = piece.content;
        if (piece.number == kType) type = piece.value;
      }
      if (type == kUserDefined) settings.whole.emplace_back(text);
    }
    if (fields.number != kTrainer && fields.number != kNormalizer) continue;
    const bool trainer = fields.number == kTrainer;
    for (Fields part(fields.content, path); part.next();) {
      const bool on = part.value != 0;
      if (trainer && part.number == kModelType) settings.model_type = part.value;
      if (trainer && part.number == kSpaceAfter) settings.space_after = on;
      if (trainer && part.number == kByteFallback) settings.byte_fallback = on;
      if (!trainer && part.number == kCharsMap) settings.rules = part.content;
      if (!trainer && part.number == kPrefix) settings.prefix = on;
      if (!trainer && part.number == kSqueezesSpaces) settings.squeezes_spaces = on;
      if (!trainer && part.number == kMarksSpaces) settings.marks_spaces = on;
    }
  }
  return settings;
}

std::string without_rules(std::string_view model, bool prefix, const std::string& path) {
  std::string out;
  for (Fields fields(model, path); fields.next();) {
    if (fields.number == kSelfTest) continue;  // samples that may need the rules
    if (fields.number != kNormalizer) {
      out += fields.whole;
      continue;
    }
    std::string normalizer;
    for (Fields part(fields.content, path); part.next();) {
      if (part.number != kCharsMap && part.number != kPrefix) normalizer += part.whole;
    }
    normalizer += {static_cast<char>(kPrefix << 3), static_cast<char>(prefix)};
    out += static_cast<char>(kNormalizer << 3 | 2);
    size_t size = normalizer.size();
    for (; size >= 0x80; size >>= 7) out += static_cast<char>(size | 0x80);
    out += static_cast<char>(size);
    out += normalizer;
  }
  return out;
}

}  // namespace compact
