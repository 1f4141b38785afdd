// SPDX-License-Identifier: Apache-2.0
#include "compact/base/rope_config.h"

#include <cmath>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/base/named.h"

namespace compact {
namespace {

struct NamedKind {
  RopeKind kind;
  std::string name;
};
const std::vector<NamedKind>& kinds() {
  static const std::vector<NamedKind> all = {
      {RopeKind::kDefault, "default"},   {RopeKind::kLinear, "linear"},
      {RopeKind::kDynamic, "dynamic"},   {RopeKind::kYarn, "yarn"},
      {RopeKind::kLongrope, "longrope"}, {RopeKind::kLlama3, "llama3"}};
  return all;
}

void check_factors(const char* key, const std::vector<double>& factors, int64_t count,
                   std::string_view where) {
  COMPACT_CHECK(static_cast<int64_t>(factors.size()) == count, where, ": ", key, " must have ",
                count, " numbers, half of what is turned of a head, has ", factors.size());
  for (const double factor : factors) check_positive({{key, factor}}, where);
}

}  // namespace

RopeKind rope_kind_of(std::string_view name, std::string_view where) {
  return named(std::span(kinds()), name,
               cat(where, ": rope_type: no such type of rotary positions"))
      .kind;
}

const char* name_of(RopeKind kind) { return kinds()[static_cast<size_t>(kind)].name.c_str(); }

int64_t rotated_width(const RopeConfig& rope, int64_t head_dim) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial);
}

void check_rope_config(const RopeConfig& rope, int64_t head_dim, std::string_view where) {
  check_positive({{"rope_theta", rope.theta}}, where);
  COMPACT_CHECK(rope.partial > 0 && rope.partial <= 1, where,
                ": partial_rotary_factor must be above 0 and at most 1, is ", rope.partial);
  const int64_t width = rotated_width(rope, head_dim);
  COMPACT_CHECK(width >= 2 && width % 2 == 0, where,
                ": what is turned of a head must be even and at least 2 wide, is ", width, " of ",
                head_dim);
  if (rope.kind == RopeKind::kDefault) return;
  COMPACT_CHECK(!rope.factor || (std::isfinite(*rope.factor) && *rope.factor >= 1), where,
                ": factor must be finite and at least 1, is ", rope.factor.value_or(0));
  const bool own_factor = rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongrope;
  COMPACT_CHECK(rope.factor || own_factor, where, ": factor must be given with rope_type ",
                name_of(rope.kind));
  if (rope.attention_factor) check_positive({{"attention_factor", *rope.attention_factor}}, where);
  if (rope.kind == RopeKind::kDynamic) {
    COMPACT_CHECK(width > 2, where, ": rope_type dynamic needs more than 2 turned elements a head");
  }
  if (own_factor || rope.kind == RopeKind::kLlama3) {
    COMPACT_CHECK(rope.original_length >= 2 && rope.original_length < int64_t{1} << 31, where,
                  ": original_max_position_embeddings must be from 2 to 2147483647, is ",
                  rope.original_length);
  }
  if (rope.kind == RopeKind::kLlama3) {
    check_positive(
        {{"low_freq_factor", rope.low_freq_factor}, {"high_freq_factor", rope.high_freq_factor}},
        where);
    COMPACT_CHECK(rope.high_freq_factor > rope.low_freq_factor, where,
                  ": high_freq_factor must be above low_freq_factor ", rope.low_freq_factor,
                  ", is ", rope.high_freq_factor);
  }
  if (rope.kind == RopeKind::kYarn) {
    check_positive({{"beta_fast", rope.beta_fast}, {"beta_slow", rope.beta_slow}}, where);
    COMPACT_CHECK(rope.beta_fast >= rope.beta_slow, where,
                  ": beta_fast must be at least beta_slow ", rope.beta_slow, ", is ",
                  rope.beta_fast);
    COMPACT_CHECK(rope.theta > 1, where, ": rope_theta must be above 1 with rope_type yarn, is ",
                  rope.theta);
    for (const auto& [key, value] :
         {std::pair("mscale", rope.mscale), {"mscale_all_dim", rope.mscale_all_dim}}) {
      COMPACT_CHECK(!value || (std::isfinite(*value) && *value >= 0), where, ": ", key,
                    " must be finite and at least 0, is ", value.value_or(0));
    }
  }
  if (rope.kind == RopeKind::kLongrope) {
    check_factors("short_factor", rope.short_factor, width / 2, where);
    check_factors("long_factor", rope.long_factor, width / 2, where);
  }
}

}  // namespace compact
