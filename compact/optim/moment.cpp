// SPDX-License-Identifier: Apache-2.0
#include "compact/optim/moment.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/philox.h"
#include "compact/base/spec.h"
#include "compact/codecs/launch.h"
#include "compact/optim/update.h"

namespace compact {
namespace {

uint8_t* bytes_of(const at::Tensor& t) { return static_cast<uint8_t*>(t.data_ptr()); }

// How many scales a row of `width` elements has.
int64_t blocks_of(int64_t width) {
  return (width + kernels::kFloat8Block - 1) / kernels::kFloat8Block;
}

}  // namespace

MomentKind moment_kind(const std::string& text) {
  const std::vector<Spec> chain = Spec::parse_chain(text.empty() ? "f32" : text);
  const Spec& spec = chain[0];
  const MomentType type = spec.name == "f8"     ? MomentType::kFloat8
                          : spec.name == "bf16" ? MomentType::kBFloat16
                                                : MomentType::kFloat32;
  COMPACT_CHECK(spec.name == "f32" || type != MomentType::kFloat32,
                "[optimizer] moments are held as f32, bf16 or f8, not `", text, "`");
  spec.allow({});
  COMPACT_CHECK(chain.size() < 3, "[optimizer] moments are in one place, not in `", text, "`");
  if (chain.size() == 1) return {.type = type};
  chain[1].allow({});
  return {.type = type, .place = memory_place(chain[1].name)};
}

Moment::Moment(at::IntArrayRef sizes, const at::TensorOptions& options, MomentKind kind,
               bool is_signed, const std::string& folder)
    : is_signed_(is_signed) {
  const bool packed = kind.type == MomentType::kFloat8;
  const at::ScalarType type = packed                               ? at::kByte
                              : kind.type == MomentType::kBFloat16 ? at::kBFloat16
                                                                   : at::kFloat;
  value_ = zeros_in(kind.place, sizes, options.dtype(type), folder);
  if (!packed) return;
  scales_ = zeros_in(kind.place, {rows(), blocks_of(width())}, options.dtype(at::kFloat), folder);
}

Moment::Moment(at::Tensor value, at::Tensor scales, bool is_signed)
    : value_(std::move(value)), scales_(std::move(scales)), is_signed_(is_signed) {
  COMPACT_CHECK(value_.defined() && value_.is_contiguous(), "[moment] values must be contiguous");
  const at::ScalarType type = value_.scalar_type();
  COMPACT_CHECK(packed() ? type == at::kByte : type == at::kFloat || type == at::kBFloat16,
                "[moment] values must be Float or BFloat16, or Byte with scales, are ",
                c10::toString(type), packed() ? " with" : " without", " scales");
  if (!packed()) return;
  // Without rows the width is not known.
  const int64_t blocks = rows() == 0 && scales_.dim() == 2 ? scales_.size(1) : blocks_of(width());
  COMPACT_CHECK(scales_.scalar_type() == at::kFloat && scales_.is_contiguous() &&
                    scales_.device() == value_.device() &&
                    scales_.sizes() == at::IntArrayRef({rows(), blocks}),
                "[moment] scales must be Float [", rows(), ", ", blocks, "] on ", value_.device(),
                ", are ", c10::toString(scales_.scalar_type()), " ", scales_.sizes(), " on ",
                scales_.device());
}

int64_t Moment::nbytes() const {
  return static_cast<int64_t>((value_.defined() ? value_.nbytes() : 0) +
                              (scales_.defined() ? scales_.nbytes() : 0));
}

int64_t Moment::rows() const { return value_.dim() < 2 ? 1 : value_.size(0); }

int64_t Moment::width() const { return rows() == 0 ? 0 : value_.numel() / rows(); }

at::Tensor Moment::read(int64_t begin, int64_t count) const {
  const at::Tensor part = value_.dim() < 2 ? value_ : value_.narrow(0, begin, count);
  if (!packed()) return part;
  const at::Tensor scales = scales_.narrow(0, begin, count);
  const at::Tensor x = at::empty(part.sizes(), part.options().dtype(at::kFloat));
  backend_of(x).float8_unpack({.codes = bytes_of(part),
                               .scales = floats_of(scales),
                               .x = floats_of(x),
                               .rows = count,
                               .n = width(),
                               .is_signed = is_signed_},
                              launch_for(x));
  return x;
}

void Moment::write(int64_t begin, const at::Tensor& rows, uint64_t key,
                   const at::Tensor& guard) const {
  if (!packed()) return;
  const int64_t count = value_.dim() < 2 ? 1 : rows.size(0);
  const at::Tensor part = value_.dim() < 2 ? value_ : value_.narrow(0, begin, count);
  const at::Tensor scales = scales_.narrow(0, begin, count);
  backend_of(rows).float8_pack({.x = floats_of(rows),
                                .codes = bytes_of(part),
                                .scales = floats_of(scales),
                                .rows = count,
                                .n = width(),
                                .is_signed = is_signed_,
                                .key = derive(key, static_cast<uint64_t>(begin)),
                                .guard = floats_of(guard)},
                               launch_for(rows));
}

at::Tensor Moment::accumulate(int64_t begin, const at::Tensor& d, double decay, double alpha,
                              uint64_t key, const at::Tensor& guard) const {
  const at::Tensor rows = read(begin, value_.dim() < 2 ? 1 : d.size(0));
  compact::accumulate(rows, {}, d, decay, alpha, key, begin * width(), guard);
  write(begin, rows, key, guard);
  return rows;
}

}  // namespace compact
