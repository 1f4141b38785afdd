// SPDX-License-Identifier: Apache-2.0
// Which operations of ATen may run a second time: those that give the same bits again, cheap ones
// and, under a budget, heavy ones.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "compact/base/function_ref.h"

namespace compact {

// With which signs a tensor has what rounded tensors were: where it is a sum of the value of one
// and of the negative of another, these may cancel.
enum Signs : uint8_t { kPlain = 1, kNegated = 2, kBoth = 3 };

// The tensors that an operation reads and that are, or may be, rounded.
struct RoundedInput {
  size_t argument;
  uint8_t signs;
};
using RoundedInputs = c10::SmallVector<RoundedInput, 3>;

struct OpRule {
  c10::OperatorHandle op;
  // It is the operation itself, not a composite of others that are watched by themselves.
  bool leaf = false;
  bool cast_on_cpu = false, cast_on_cuda = false;  // there autocast makes it a composite
  bool again = false;                              // may run again
  // Its result changes by as little as its arguments do, of which those that are rounded are
  // floats: where `smooth_where` (null: always) says so.
  bool smooth = false;
  using Smooth = bool (*)(c10::ArrayRef<const c10::IValue> arguments, const RoundedInputs& rounded);
  Smooth smooth_where = nullptr;
  // Whether it takes an argument's negative: of the first one, of the second one, of that where
  // alpha is negative, or of its tensors where what they are multiplied with is.
  enum class Turns : uint8_t { kNone, kFirst, kSecond, kByAlpha, kByFactor } turns = Turns::kNone;
  // A product, convolution or attention, which may run again under a budget.
  struct Heavy {
    const char* name;
    enum class Kind : uint8_t { kProduct, kConvolution, kAttention } kind;
    size_t matrix = 0;  // the argument that is a product's first matrix
    int dropout = -1;   // the argument that says with which chance attention drops weights
  };
  const Heavy* heavy = nullptr;
  bool drops = false;                 // native_dropout: its first result is made again of its mask
  bool writes = false;                // any of its arguments
  c10::SmallVector<bool, 8> written;  // by argument
  bool resizes = false;               // what it writes may get another size first
  // Tensors of at most two values, and of none below 0: operations that make them, and those that
  // make more from them.
  enum class Values : uint8_t { kOther, kMakes, kKeeps };
  Values two_values = Values::kOther, not_negative = Values::kOther;
  // Running statistics that it writes without saying so: a mean, then a variance.
  struct Statistics {
    const char* name;
    size_t mean;   // its argument
    int training;  // the argument that says whether they are written; -1: always
  };
  const Statistics* statistics = nullptr;
};

// Elements of the innermost dimensions that codes of a tensor have a scale for, or several.
inline constexpr int64_t kLeastRow = 64;

// Fills what a rule says of values, from the operation's name in ATen.
void take_values(OpRule& rule, std::string_view own);
// Whether it may run again on rounded values.
bool is_smooth(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments,
               const RoundedInputs& rounded);
// Signs of its result. `not_negative` says of an argument whether no value in it is below 0.
uint8_t signs_of(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments,
                 const RoundedInputs& rounded, FunctionRef<bool(size_t)> not_negative);
// Whether no value of its result is below 0, where none of the tensors that it reads is.
bool stays_not_negative(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments);

// Whether autocast of this thread runs the operation, with other arguments, inside of itself.
bool is_cast(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments);

// The factor by which native_dropout multiplies elements that it keeps; nullopt: it keeps all, or
// none. Its backward operation, with this scale and the mask, gives its result.
std::optional<double> scale_of_dropout(c10::ArrayRef<const c10::IValue> arguments);

// Whether it gives the same bits again with these arguments: attention that drops nothing, and on a
// GPU convolutions whose algorithm no thread chooses by time, and which add in one order.
bool gives_the_same(const OpRule::Heavy& heavy, c10::ArrayRef<const c10::IValue> arguments);
// Bytes that could be moved in the time of its arithmetic. `inputs`: sizes of its tensors in order.
int64_t work_of(const OpRule::Heavy& heavy, c10::ArrayRef<c10::IntArrayRef> inputs,
                c10::IntArrayRef result, c10::ArrayRef<c10::IValue> arguments, bool on_cpu);
// The settings of the process that may change the bits of a heavy operation's result.
uint64_t precision_settings();

// Null where the function has no schema: Python's own autograd functions.
const OpRule* rule_of(const at::RecordFunction& f);

}  // namespace compact
