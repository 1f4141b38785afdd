// SPDX-License-Identifier: Apache-2.0
#include "compact/config/option_groups_impl.h"

#include <iterator>

#include "compact/base/text.h"
#include "compact/codecs/projection.h"
#include "compact/config/precision.h"

namespace compact {
namespace {

bool is_bytes(const std::string& text) { return parse_bytes(text).has_value(); }

}  // namespace

OptionGroup options_of_machine() {
  using enum ResumeRule;
  using enum Commands::Bit;
  const std::span<const Choice> types = element_types();  // weights have no float8
  return {
      "Precision and device",
      {
          {OPTION(dtype, "type of weights and activations"),
           .choices = {types.begin(), types.begin() + 2}, .resume = kKept,
           .commands = kRunOrPlan | kEval | kGenerate},
          {OPTION(
               master_weights,
               "bfloat16: keep an f32 copy of weights; without it they are rounded stochastically"),
           .resume = kKept},
          {OPTION(optim_state_dtype,
                  "type of moments; default: bfloat16 with bfloat16 weights that are trained "
                  "without master, else float32"),
           .choices = {types.begin(), types.end()}, .resume = kKept},
          {OPTION(offload_folder,
                  "folder for files of optimizer state and weights that a policy has on a disk "
                  "(`moment * = f32+disk`, `weight * = disk`); default: --output_dir"),
           .values = "DIR", .resume = kFree},
          {OPTION(matmul_precision, "highest: true f32 products; high: the fastest path"),
           .choices = {std::begin(kMatmulPrecisions), std::end(kMatmulPrecisions)}, .resume = kKept,
           .commands = kRunOrPlan | kEval | kGenerate},
          {OPTION(device, "auto: the GPU where there is one and this build has kernels for it"),
           .choices = {{"auto"}, {"cpu"}, {"cuda"}}, .resume = kFree,
           .commands = kRunOrPlan | kEval | kGenerate | kVisualize},
          {OPTION(deterministic,
                  "on a GPU the same bits in every run, too, for more time and memory; a CPU "
                  "gives them always"),
           .resume = kWarned, .commands = kRunOrPlan | kEval},
          {OPTION(cuda_graph,
                  "on a GPU: steps of a language model after the second are replayed from a CUDA "
                  "graph, one launch each; the same bits"),
           .resume = kFree, .commands = kRun},
          {OPTION(ddp_timeout,
                  "seconds after which a rank of several that does not answer counts as gone"),
           .range = ValueRange::from(1, 1 << 30), .resume = kFree, .commands = kTrain},
          {OPTION(
               zero,
               "ZeRO stage, with several ranks; 0: each has all optimizer state; 1: one rank has "
               "that of a matrix, updates it and sends the update; 2: and alone has the sum of "
               "its gradients, made in every micro-batch; 3: and alone has the weight of a "
               "block, which the others get while the block runs"),
           .range = ValueRange::from(0, 3), .resume = kFree, .commands = kTrain | kPlan},
          {OPTION(reduce_dtype, "type in which gradients of matrices are summed over ranks"),
           .choices = {{"float32"}, {"bfloat16"}}, .resume = kWarned, .commands = kTrain | kPlan},
          {OPTION(deterministic_reduce,
                  "gradients of micro-batches and ranks are summed as a binary tree: the same bits "
                  "on 1, 2, 4, ... ranks, for a gradient in float32 for every doubling"),
           .resume = kWarned, .commands = kTrain | kPlan},
          {OPTION(threads, "CPU threads; 0: all cores"), .range = ValueRange::from(0, 1024),
           .resume = kFree, .commands = kRunOrPlan | kEval | kGenerate | kVisualize},
          {OPTION(seed, "of weights, data order, projections and rounding"),
           .range = ValueRange::at_least(0), .resume = kKept, .commands = kRunOrPlan | kGenerate,
           .elsewhere = {{kGenerate, "of the choices"}}},
      }};
}

OptionGroup options_of_memory() {
  using enum ResumeRule;
  using enum Commands::Bit;
  return {
      "Memory",
      {
          {OPTION(preset,
                  "how saved tensors and gradients are held; auto: the fastest way under --budget"),
           .values = "auto; see `compact list presets`", .resume = kPolicy,
           .commands = kTrain | kPlan},
          {OPTION(budget,
                  "most bytes that a step may take, all included, and enforced; a preset that "
                  "quantizes takes fewer bits where it must; default: what the machine has"),
           .values =
               "10GiB or 10Gi, 10GB or 10G, bytes as 13926664; of one run of a comparison 50%",
           .form = {is_bytes,
                    "a positive number of bytes, as 10GiB, 10GB or 13926664; only --presets of a "
                    "comparison take a part, as 50%"},
           .resume = kFree},
          {OPTION(allow,
                  "what --preset auto may give up where nothing exact fits, or where optimizer "
                  "state and then weights may be: on a GPU's host (offload), in files of "
                  "--offload_folder (disk)"),
           .values = "lossless, quantize, project, offload, disk or A,B", .resume = kFree,
           .beside = {"preset", {"auto"}}},
          {OPTION(policy, "a policy file, which overrides the preset"), .values = "FILE",
           .resume = kPolicy},
          {OPTION(set,
                  "a policy line, which overrides preset and file: \"slot layers.*.mlp.gate_up = "
                  "recompute\""),
           .values = "LINE...", .resume = kPolicy},
          {OPTION(bits_interval,
                  "steps between choices of bits, where the policy leaves them open (`adapt=N`)"),
           .range = ValueRange::at_least(1), .resume = kKept},
          {OPTION(bits_probes, "gradients computed for each choice of bits"),
           .range = ValueRange::at_least(2), .resume = kKept},
          {OPTION(bits_guard,
                  "bits are raised where rounding would add more than this part of the gradient's "
                  "own variance from batch to batch; under --budget only reported; 0: never"),
           .range = ValueRange::at_least(0), .resume = kKept},
          {OPTION(rank,
                  "rank of projections: below 1 a part of the input width; 0: as the policy says"),
           .range = ValueRange::at_least(0), .resume = kPolicy, .projects = "rank"},
          {OPTION(update_proj_gap,
                  "steps between re-draws of projections; 0: never; -1: as the policy says"),
           .range = ValueRange::at_least(-1), .resume = kPolicy, .projects = "period"},
          {OPTION(scale, "alpha of the projected update; 0: as the policy says"),
           .range = ValueRange::at_least(0), .resume = kPolicy, .projects = "scale"},
          {OPTION(proj_type, "projection; default: as the policy says"),
           .choices = choices_of(projections()), .resume = kPolicy, .projects = "type"},
          {OPTION(carry_moments,
                  "moments follow the basis at a re-draw; default: as the policy says"),
           .choices = {{"true"}, {"false"}}, .resume = kPolicy, .projects = "carry"},
      }};
}

}  // namespace compact
