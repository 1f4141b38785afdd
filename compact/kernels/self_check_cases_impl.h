// SPDX-License-Identifier: Apache-2.0
// The cases of every kernel, once: small awkward sizes, which self_check runs on the reference and
// on the tested backend, and those of training, which are for counting and measuring.
#pragma once

#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "compact/base/check.h"
#include "compact/base/function_ref.h"
#include "compact/kernels/self_check.h"
#include "compact/kernels/self_check_side_impl.h"

namespace compact::kernels {

inline constexpr Type kTypes[] = {Type::kFloat32, Type::kBFloat16};
inline constexpr double kClose = 2e-5;  // f32 sums in another order, another library's exp

class Checker {
 public:
  using Run = FunctionRef<void(const Backend&, Side&, const Launch&)>;
  Checker(const Backend& backend, const Memory& memory, const Launch& launch)
      : backend_(backend), memory_(memory), launch_(launch) {}
  virtual ~Checker() = default;

  // Later cases belong to this kernel.
  virtual void begin(const char* kernel);
  // The tested backend, aligned and not, against the reference. `run` makes tensors and calls.
  virtual void compare(double tolerance, const std::string& what, Run run);
  // The values that a case takes: awkward ones, or those of training.
  template <class T = int64_t>
  std::vector<T> either(std::initializer_list<std::type_identity_t<T>> awkward,
                        std::initializer_list<std::type_identity_t<T>> of_training) const {
    return training_ ? of_training : awkward;
  }
  // Values about 1 in size, the same for the same seed; with_specials: some NaN and infinities.
  static std::vector<float> values(int64_t count, uint64_t seed, bool with_specials = false);
  // Whether the backend's device has room for a row of n.
  bool takes_srht(int64_t n) const;
  const std::vector<KernelCheck>& results() const { return results_; }

 protected:
  const Backend& backend_;
  Memory memory_;
  Launch launch_;
  bool training_ = false;

 private:
  std::vector<KernelCheck> results_;
};

inline const char* text_of(Type type) { return type == Type::kFloat32 ? "f32" : "bf16"; }

// Guards of updates: 0 is one that holds back, 1 one that does not; others are none.
inline const float* guard_of(Side& s, int number) {
  const float value = number == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  return number == 0 || number == 1 ? s.floats("guard", {&value, 1}) : nullptr;
}

void check_layers(Checker& c);   // norm, rope, swiglu, cross-entropy
void check_updates(Checker& c);  // srht, draw, adamw, fold
void check_codecs(Checker& c);   // float8, quantize, nf4, bits

}  // namespace compact::kernels
