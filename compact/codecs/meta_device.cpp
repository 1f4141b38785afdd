// SPDX-License-Identifier: Apache-2.0
#include "compact/codecs/meta_device.h"

#include <ATen/ATen.h>

#include <atomic>
#include <utility>

namespace compact {
namespace {

std::atomic<c10::DeviceType> g_meta_device{c10::kCPU};
thread_local bool g_on_host = false;

}  // namespace

void set_meta_device(c10::DeviceType type) { g_meta_device = type; }
c10::DeviceType meta_device() { return g_meta_device; }

at::Tensor numbers_like(const at::Tensor& t) {
  return t.defined() ? at::full(t.sizes(), 0.01, t.options().device(at::kCPU)) : at::Tensor();
}

MetaOnHost::MetaOnHost() : before_(std::exchange(g_on_host, true)) {}
MetaOnHost::~MetaOnHost() { g_on_host = before_; }
bool MetaOnHost::active() { return g_on_host; }

}  // namespace compact
