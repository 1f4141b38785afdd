// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/gpu_card.h"

#include <algorithm>
#include <cctype>

#include "compact/base/check.h"
#include "compact/base/named.h"
#include "compact/base/text.h"

namespace compact {
namespace {

constexpr double kPcie5 = 63, kNvlinkC2c = 450;

constexpr GpuCard kCards[] = {
    {"h100-pcie", "H100 PCIe", 756, 51, 2.0, 81559, 90, 114, kPcie5},
    {"h100-nvl", "H100 NVL", 835, 60, 3.9, 95830, 90, 132, kPcie5},
    {"h100", "H100", 989, 67, 3.35, 81559, 90, 132, kPcie5},
    {"h200", "H200", 989, 67, 4.8, 143771, 90, 132, kPcie5},
    {"gh200", "GH200", 989, 67, 4.0, 97871, 90, 132, kNvlinkC2c},
    {"b200", "B200", 2250, 75, 8.0, 183359, 100, 148, kPcie5},
    {"b100", "B100", 1750, 60, 8.0, 183359, 100, 148, kPcie5},
    {"a100-80gb-pcie", "A100 80GB PCIe", 312, 19.5, 1.94, 81920, 80, 108},
    {"a100-80gb", "A100-SXM4-80GB", 312, 19.5, 2.04, 81920, 80, 108},
    {"a100", "A100", 312, 19.5, 1.56, 40960, 80, 108},
    {"a800", "A800", 312, 19.5, 2.04, 81920, 80, 108},
    {"h800", "H800", 989, 67, 3.35, 81559, 90, 132, kPcie5},
    {"l40s", "L40S", 362, 91.6, 0.864, 46068, 89, 142},
    {"l40", "L40", 181, 90.5, 0.864, 46068, 89, 142},
    {"l4", "L4", 121, 30.3, 0.3, 23034, 89, 58},
    {"a40", "A40", 150, 37.4, 0.696, 46068, 86, 84},
    {"a30", "A30", 165, 10.3, 0.933, 24576, 80, 56},
    {"a10g", "A10G", 70, 31.5, 0.6, 23028, 86, 80},
    {"a10", "A10", 125, 31.2, 0.6, 23028, 86, 72},
    {"6000-ada", "RTX 6000 Ada", 364, 91.1, 0.96, 49140, 89, 142},
    {"a6000", "RTX A6000", 155, 38.7, 0.768, 49140, 86, 84},
    {"a5000", "RTX A5000", 111, 27.8, 0.768, 24564, 86, 64},
    {"5090", "RTX 5090", 210, 105, 1.79, 32607, 120, 170, kPcie5},
    {"5080", "RTX 5080", 113, 56.3, 0.96, 16303, 120, 84, kPcie5},
    {"4090", "RTX 4090", 165, 82.6, 1.01, 24564, 89, 128},
    {"4080", "RTX 4080", 97.5, 48.7, 0.717, 16376, 89, 76},
    {"4070", "RTX 4070", 58.3, 29.1, 0.504, 12282, 89, 46},
    {"4060", "RTX 4060", 30.2, 15.1, 0.272, 8188, 89, 24},
    {"3090", "RTX 3090", 71, 35.6, 0.936, 24576, 86, 82},
    {"3080", "RTX 3080", 59.5, 29.8, 0.76, 10240, 86, 68},
};

// Bytes of shared memory that a block may ask for (CUDA's programming guide).
constexpr int64_t shared_memory_of(int capability) {
  switch (capability) {
    case 80:
      return 163 << 10;
    case 90:
    case 100:
      return 227 << 10;
    default:  // GeForce and its kin: 86, 89, 120
      return 99 << 10;
  }
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Whether `words` stand in `text`, not as part of a longer word: "A10" is not in "A100".
bool holds(std::string_view text, std::string_view words) {
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) {
    const size_t end = at + words.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

kernels::Gpu GpuCard::gpu() const {
  return {.name = cat("NVIDIA ", words),
          .capability = capability,
          .processors = processors,
          .shared_memory = shared_memory_of(capability)};
}

std::string GpuCard::summary() const {
  return cat(words, ": ", formatted("%.1f", mebibytes / 1024.0), " GiB at ", terabytes_a_second,
             " TB/s, products at ", half_tflops, " TFLOP/s in bf16, ", float_tflops, " in f32");
}

std::string float_products(const GpuCard& card, std::string_view precision) {
  const std::string exact = cat("f32 at ", card.float_tflops, " TFLOP/s"),
                    fast = cat("TF32 at ", card.tf32_tflops(), " TFLOP/s");
  return precision == "high" ? cat(fast, "; --matmul_precision highest: ", exact)
                             : cat(exact, "; --matmul_precision high: ", fast);
}

std::span<const GpuCard> gpu_cards() { return kCards; }

const GpuCard& gpu_card(std::string_view name) {
  const std::string lower = lower_case(name);
  const auto found = std::ranges::find(kCards, lower, &GpuCard::name);
  if (found != std::end(kCards)) return *found;
  if (const GpuCard* card = find_gpu_card(name)) return *card;
  const std::string near = nearest(lower, names_of(kCards));
  fail("no GPU `", name, "` is known here (`compact list gpus`): ",
       near.empty() ? "" : "did you mean `" + near + "`? Or ", "plan for another, with what this ",
       "one has by --device_tflops, --device_gbps and --budget");
}

const GpuCard* find_gpu_card(std::string_view driver_name) {
  const auto found = std::ranges::find_if(
      kCards, [&](const GpuCard& card) { return holds(driver_name, card.words); });
  return found == std::end(kCards) ? nullptr : found;
}

const GpuCard& planned_card() {
  const GpuCard* const card = find_gpu_card(kernels::planned_gpu().name);
  return card ? *card : gpu_card("h100");
}

}  // namespace compact
