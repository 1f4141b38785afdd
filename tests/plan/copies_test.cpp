// SPDX-License-Identifier: Apache-2.0
// Copies of matrices take as much on the meta device as on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>
#include <utility>

#include "compact/base/check.h"
#include "compact/codecs/meta_device.h"
#include "compact/ops/memory/memory.h"
#include "compact/plan/request.h"

namespace compact {
namespace {

using at::Tensor;

struct Strides {
  const char* name;
  std::function<Tensor(int64_t, int64_t, at::TensorOptions)> make;
};
const Strides kStrides[] = {
    {"by rows",
     [](int64_t m, int64_t n, auto o) {
       return at::zeros({m, n}, o);
     }},
    {"by columns",
     [](int64_t m, int64_t n, auto o) {
       return at::zeros({n, m}, o).t();
     }},
    {"columns apart",
     [](int64_t m, int64_t n, auto o) {
       return at::zeros({n, m + 1}, o).narrow(1, 0, m).t();
     }},
    {"some of the columns",
     [](int64_t m, int64_t n, auto o) {
       return at::zeros({n + 1, m}, o).narrow(0, 1, n).t();
     }},
    {"one row for all",
     [](int64_t m, int64_t n, auto o) {
       return at::zeros({n}, o).expand({m, n});
     }},
    {"a batch of one",
     [](int64_t m, int64_t n, auto o) {
       return at::zeros({1, n, m}, o).transpose(1, 2);
     }},
};

// Most bytes beside what there was.
int64_t taken_by(at::Device device, const std::function<Tensor()>& run) {
  const int64_t before = live_bytes(device);
  reset_peak(device);
  run();
  return peak_bytes(device) - before;
}

// In both passes, in all layouts: where channels are neighbours in memory each thread has sums.
TEST(MetaNorms, BatchNormsTakeWhatTheyDo) {
  prepare_meta(c10::kCPU);
  const auto last = at::MemoryFormat::ChannelsLast;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool training : {true, false}) {
      for (const auto& [sizes, format] : {std::pair<std::vector<int64_t>, at::MemoryFormat>{
                                              {80, 300}, at::MemoryFormat::Contiguous},
                                          {{8, 60, 20}, at::MemoryFormat::Contiguous},
                                          {{16, 60, 1, 1}, at::MemoryFormat::Contiguous},
                                          {{4, 60, 8, 8}, at::MemoryFormat::Contiguous},
                                          {{4, 60, 8, 8}, last}}) {
        int64_t taken[2][2] = {};
        for (const at::Device device : {at::kCPU, at::kMeta}) {
          const auto f32 = at::device(device);
          const Tensor x = at::empty(sizes, f32.dtype(type).memory_format(format)).zero_();
          const Tensor w = at::ones({sizes[1]}, f32), b = at::zeros({sizes[1]}, f32),
                       mean = at::zeros({sizes[1]}, f32), var = at::ones({sizes[1]}, f32);
          std::tuple<Tensor, Tensor, Tensor> y;
          auto& [forward, backward] = taken[device.is_meta()];
          forward = taken_by(device, [&] {
            y = at::native_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5);
            return std::get<0>(y);
          });
          backward = taken_by(device, [&] {
            return std::get<0>(at::native_batch_norm_backward(x, x, w, mean, var, std::get<1>(y),
                                                              std::get<2>(y), training, 1e-5,
                                                              {true, true, true}));
          });
        }
        const std::string text = cat(type, " ", at::IntArrayRef(sizes), " ", format,
                                     training ? " training" : " evaluating");
        EXPECT_EQ(taken[1][0], taken[0][0]) << text;
        EXPECT_EQ(taken[1][1], taken[0][1]) << text << ", backward";
      }
    }
  }
}

TEST(MetaCopies, TakeWhatTheyDo) {
  prepare_meta(c10::kCPU);
  int tiles = 0;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong,
                                    at::kByte, at::kChar, at::kBool}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{60, 60},
                               {59, 61},
                               {61, 60},
                               {3600, 1},
                               {1, 3600},
                               {1, 3599},
                               {36, 100},
                               {119, 30},
                               {200, 333},
                               {0, 70}}) {
      for (const Strides& from : kStrides) {
        int64_t taken[2][4] = {};
        for (const at::Device device : {at::kCPU, at::kMeta}) {
          const auto options = at::device(device).dtype(type);
          const Tensor x = from.make(m, n, options), to = at::zeros(x.sizes(), options),
                       columns = at::zeros({n, m}, options).t().view(x.sizes()),
                       other = to.to(type == at::kFloat ? at::kDouble : at::kFloat);
          int64_t* const bytes = taken[device.is_meta()];
          bytes[0] = taken_by(device, [&] { return to.copy_(x); });
          bytes[1] = taken_by(device, [&] { return x.contiguous(); });
          bytes[2] = taken_by(device, [&] { return columns.copy_(x); });
          bytes[3] = taken_by(device, [&] { return other.copy_(x); });
        }
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(taken[1][i], taken[0][i])
              << c10::toString(type) << " " << m << " x " << n << " " << from.name << " copy " << i;
        }
        tiles += taken[0][0] > 0;
      }
    }
  }
  EXPECT_GT(tiles, 50);
}

// The addend of a product is copied into its result, but not where it is multiplied with 0; the
// product's own factor may be held as a tensor.
TEST(MetaCopies, ProductsCopyWhatTheyAddTo) {
  prepare_meta(c10::kCPU);
  for (const auto& [beta, alpha] : std::initializer_list<std::pair<double, double>>{
           {0, 1}, {1, 1}, {0.5, 1}, {0, 0.25}, {1, 0.25}, {0.5, 0.25}}) {
    int64_t taken[2][4] = {};
    for (const at::Device device : {at::kCPU, at::kMeta}) {
      const at::Tensor by_columns = at::zeros({90, 70}, device).t(),
                       a = at::zeros({70, 80}, device), b = at::zeros({80, 90}, device);
      at::Tensor out = at::zeros({70, 90}, device);
      int64_t* const bytes = taken[device.is_meta()];
      bytes[0] = taken_by(device, [&] { return at::addmm(by_columns, a, b, beta, alpha); });
      bytes[1] =
          taken_by(device, [&] { return at::addmm_out(out, by_columns, a, b, beta, alpha); });
      bytes[2] = taken_by(device, [&] { return out.addmm_(a, b, beta, alpha); });
      bytes[3] = taken_by(device, [&] {
        return at::baddbmm(by_columns.unsqueeze(0), a.unsqueeze(0), b.unsqueeze(0), beta, alpha);
      });
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(taken[1][i], taken[0][i])
          << "beta " << beta << ", alpha " << alpha << ", product " << i;
    }
    EXPECT_EQ(taken[0][1] > 8, beta != 0) << "a tile, for the copy of a transposed matrix";
  }
}

// On a GPU a kernel copies every layout.
TEST(MetaCopies, TakeNothingOfGpus) {
  prepare_meta(c10::kCUDA);
  const Tensor x = at::zeros({70, 80}, at::kMeta), to = at::zeros({80, 70}, at::kMeta);
  EXPECT_EQ(taken_by(at::kMeta, [&] { return to.copy_(x.t()); }), 0);
  set_meta_device(c10::kCPU);
}

}  // namespace
}  // namespace compact
