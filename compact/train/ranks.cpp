// SPDX-License-Identifier: Apache-2.0
#include "compact/train/ranks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "compact/base/check.h"
#include "compact/codecs/memory_place.h"
#include "compact/config/option.h"
#include "compact/io/checksum.h"
#include "compact/ops/memory/memory.h"
#include "compact/train/run_state.h"

namespace compact {
namespace {

using nlohmann::json;

// Whether ranks may differ in it: it says how a run starts, not what is trained.
bool may_differ(const ConfigOption& option) {
  return option.name == "resume_from_checkpoint" || option.name == "overwrite_output_dir";
}

// NAME and value of each option, a line each. Values have no line break that would not be escaped.
std::string options_text(const TrainConfig& config) {
  std::string text;
  for (const ConfigOption& option : config_options()) {
    if (may_differ(option)) continue;
    std::string value = option_text(config, option);
    for (char& c : value) c = c == '\n' ? ' ' : c;
    if (value.empty()) value = "(not set)";
    text += cat(option.name, " ", value, "\n");
  }
  return text;
}

std::string line_at(const std::string& text, size_t at) {
  const size_t begin = text.rfind('\n', at ? at - 1 : 0) + 1;  // npos + 1 is 0
  return text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

at::Device rank_device(const Group& group, at::Device device) {
  if (group.size() == 1 || !device.is_cuda()) return device;
  const c10::impl::VirtualGuardImpl gpus(device.type());
  // A launcher may show each process its own GPU alone.
  const int number = gpus.deviceCount() == 1 ? 0 : group.local();
  COMPACT_CHECK(number < gpus.deviceCount(), "rank ", group.rank(), " is number ", number,
                " on its machine, which has ", gpus.deviceCount(), " GPUs");
  const at::Device own(device.type(), static_cast<c10::DeviceIndex>(number));
  gpus.setDevice(own);
  return own;
}

void lead(Group& group, FunctionRef<void()> work) {
  if (!group.lead(work)) throw GroupError("rank 0 did not come through");
}

void in_turn(Group& group, FunctionRef<void()> work) {
  lead(group, work);
  if (!group.leads()) work();
}

void agree_on_start(Group& group, bool again, TrainConfig& c) {
  if (again && group.leads()) {
    TrainConfig latest = c;
    latest.resume_from_checkpoint = "latest";
    try {
      std::vector<std::string> warnings;
      find_checkpoint(latest, warnings);
      c.resume_from_checkpoint = "latest";
    } catch (const InputError&) {  // there is none
    }
  }
  c.resume_from_checkpoint = group.broadcast(c.resume_from_checkpoint);
  c.overwrite_output_dir = group.sum_of(int64_t{group.leads() && c.overwrite_output_dir}) > 0;
}

void check_same_tensors(Group& group, const Network& network, const Optimizer& optimizer) {
  if (group.size() == 1) return;
  std::string digests;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    digests += name + " " + digest_of(tensor) + "\n";
  };
  for (const auto& [name, tensor] : network.named_tensors()) {
    for (const at::Tensor& t : network.held(tensor)) add(name, t);
  }
  for (const auto& [name, tensor] : network.adapter_tensors()) add(name, tensor);
  for (const auto& [name, tensor] : optimizer.state(Optimizer::Part::kCommon).tensors)
    add(name, tensor);
  check_same(group, "set of weights or optimizer state", digests);
}

void check_same_options(Group& group, const TrainConfig& config) {
  const std::vector<std::string> all = group.gather(options_text(config));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    size_t at = 0;
    while (at < all[0].size() && at < all[r].size() && all[0][at] == all[r][at]) ++at;
    fail("rank ", r, " was started with other options than rank 0: --", line_at(all[r], at),
         " in place of --", line_at(all[0], at));
  }
}

void check_same(Group& group, const char* what, const std::string& text) {
  const std::vector<std::string> all = group.gather(text);
  for (size_t r = 1; r < all.size(); ++r) {
    COMPACT_CHECK(all[r] == all[0], "rank ", r, " has another ", what, " than rank 0");
  }
}

std::vector<CheckpointFile> parts_of_others(Group& group, const std::filesystem::path& folder,
                                            FunctionRef<void()> own) {
  group.gather_patiently(folder.string());
  std::exception_ptr failed;
  try {
    own();
  } catch (...) {
    failed = std::current_exception();  // the others come to the call below, whatever happened here
  }
  std::vector<CheckpointFile> files;
  const std::vector<std::string> all = group.gather_patiently("");
  if (failed) std::rethrow_exception(failed);
  for (size_t r = 1; r < all.size(); ++r) {
    const json said = json::parse(all[r]);
    COMPACT_CHECK(!said.contains("error"), "rank ", r, ": ", said["error"].get<std::string>());
    files.push_back({.name = said["name"], .bytes = said["bytes"], .xxh3 = said["xxh3"]});
  }
  return files;
}

void write_own_part(Group& group, const Optimizer& optimizer) {
  const std::string folder = group.gather_patiently("")[0];
  if (folder.empty()) return;
  json said;
  try {
    const CheckpointFile file = write_optimizer_part(
        folder, group.rank() + 1, group.size(), optimizer.state(Optimizer::Part::kOwned).tensors);
    check_disks();
    said = {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.xxh3}};
  } catch (const InputError& e) {
    said = {{"error", e.what()}};
  }
  group.gather_patiently(said.dump());
}

GatheredWeights::GatheredWeights(Group& group, const Network& network, Optimizer& optimizer)
    : optimizer_(optimizer) {
  optimizer_.gather_weights();
  if (group.size() == 1) return;
  // Transfers to a GPU can be checked only after they have ended.
  synchronize(network.device());
  group.check();
}

void share_model(Group& group, const Network& network) {
  const at::NoGradGuard no_grad;
  for (const Parameter* p : network.parameters()) {
    const bool codes = network.nf4() && !network.nf4()->held(p->weight).empty();
    if (!codes) group.broadcast(p->weight.detach());  // codes never change
  }
  share_statistics(group, network);
}

void share_statistics(Group& group, const Network& network) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::set<const void*> parameters;
  for (const Parameter* p : network.parameters()) {
    parameters.insert(p->weight.storage().unsafeGetStorageImpl());
  }
  for (const auto& [name, tensor] : network.named_tensors()) {
    if (parameters.contains(tensor.storage().unsafeGetStorageImpl())) continue;
    const at::Tensor dense = tensor.contiguous();
    group.broadcast(dense);
    if (!dense.is_same(tensor)) tensor.copy_(dense);
  }
  synchronize(network.device());
  group.check();
}

}  // namespace compact
