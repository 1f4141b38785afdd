// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/meta/sums.h"

#include <ATen/ATen.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>

#include "compact/plan/meta/library_impl.h"

namespace compact {
namespace {

thread_local int g_listening = 0;
thread_local int g_nodes = 0;  // of the graph that run

std::unique_ptr<at::ObserverContext> enter_node(const at::RecordFunction&) {
  ++g_nodes;
  return nullptr;
}
void leave_node(const at::RecordFunction&, at::ObserverContext*) { --g_nodes; }

// Whether it is the engine, between the calls of two nodes, that adds to what it alone holds.
bool is_in_place(const at::Tensor& sum, const at::Tensor& next) {
  return g_listening > 0 && g_nodes == 0 && torch::autograd::get_current_graph_task_id() != -1 &&
         !at::GradMode::is_enabled() && sum.use_count() == 1 && sum.has_storage() &&
         sum.storage().use_count() == 1 && sum.is_non_overlapping_and_dense() &&
         sum.sizes() == next.sizes() && sum.scalar_type() == next.scalar_type();
}

at::Tensor add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return is_in_place(self, other) ? self : at::meta::add(self, other, alpha);
}

}  // namespace

InPlaceSums::InPlaceSums()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(enter_node, leave_node)
                                             .scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
  ++g_listening;
}

InPlaceSums::~InPlaceSums() {
  at::removeCallback(handle_);
  --g_listening;
}

void add_sums(MetaLibrary& library) { library.replace("add.Tensor", &add); }

}  // namespace compact
