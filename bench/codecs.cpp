// SPDX-License-Identifier: Apache-2.0
// bench_codecs [--threads N] [--seconds S] [--filter TEXT]: input bytes per second of encoding and
// decoding, for each codec and type, beside a memcpy of the same bytes. One table, one run: the
// three take turns, and the best of each counts. The tensor has 16 MiB: more than a core's own
// caches, and less than what malloc maps again at every call, whose cost would be the system's.
#include <ATen/ATen.h>

#include "bench/timing.h"
#include "compact/base/check.h"
#include "compact/codecs/codec.h"
#include "compact/codecs/launch.h"

namespace {

constexpr int64_t kBytes = int64_t{16} << 20;

struct Row {
  const char* codec;
  at::ScalarType type;
};

at::Tensor values_for(const Row& row, int64_t count) {
  const at::Tensor x = at::randn({count});
  if (row.type == at::kBool) return x.gt(0.3);
  if (row.type == at::kLong) return at::arange(count).remainder(12544);
  return std::string(row.codec) == "mask" ? x.gt(0.1).to(row.type) : x.to(row.type);
}

void measure(const Row& row, const Settings& settings) {
  const std::string name = compact::cat(row.codec, " ", c10::toString(row.type));
  if (name.find(settings.filter) == std::string::npos) return;
  const at::Tensor x = values_for(row, kBytes / static_cast<int64_t>(c10::elementSize(row.type)));
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const compact::CodecPtr codec = compact::make_codec(row.codec);
  const compact::Encoded encoded = codec->encode(x, 1);
  const auto launch = compact::launch_for(x);
  Copy copy(bytes);
  const std::vector<double> best =
      best_times({[&] { codec->encode(x, 1); }, [&] { encoded.restore(); },
                  [&] { copy.run(launch, settings.threads); }},
                 settings);
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  std::printf("%-44s %7.2fx %8.2f %8.2f %8.2f %8.2f %8.2f\n", name.c_str(),
              static_cast<double>(bytes) / static_cast<double>(encoded.bytes()),
              gigabytes / best[0], gigabytes / best[1], gigabytes / best[2], best[2] / best[0],
              best[2] / best[1]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Settings> settings = Settings::begin(argc, argv);
  if (!settings) return 2;
  std::printf("%lld threads; GB/s of input, and beside memcpy\n",
              static_cast<long long>(settings->threads));
  std::printf("%-44s %8s %8s %8s %8s %8s %8s\n", "codec", "smaller", "encode", "decode", "memcpy",
              "encode", "decode");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* codec :
         {"quantize:bits=8", "quantize:bits=4", "quantize:bits=2", "quantize:bits=1",
          "quantize:bits=8,rounding=nearest", "quantize:bits=4,rounding=nearest",
          "quantize:bits=4,levels=lloyd", "quantize:bits=4,levels=lloyd,rounding=nearest",
          "quantize:bits=2,levels=lloyd,rounding=nearest", "quantize:bits=4,group=64", "mask",
          "mask:of=sign", "offload"}) {
      measure({codec, type}, *settings);
    }
  }
  measure({"mask", at::kBool}, *settings);
  measure({"index", at::kLong}, *settings);
  measure({"index:limit=256", at::kLong}, *settings);
}
