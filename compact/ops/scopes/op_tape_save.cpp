// SPDX-License-Identifier: Apache-2.0
// OpTape's part for the tensors that autograd saves: in which form each is held.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "compact/ops/scopes/op_tape_impl.h"

namespace compact {

SavedNode::SavedNode(std::shared_ptr<Rebuild> rebuild, TapeNodePtr node, const at::Tensor& t)
    : rebuild_(std::move(rebuild)),
      node_(std::move(node)),
      geometry_(Geometry::of(t)),
      counter_(t.unsafeGetTensorImpl()->version_counter()),
      version_(counter_.current_version()) {}

SavedNode::~SavedNode() {
  const Rebuild::Lock lock(*rebuild_);
  --node_->handles;
  rebuild_->release(*node_);
}

at::Tensor SavedNode::unpack() const {
  const Rebuild::Lock lock(*rebuild_);
  const bool kept = node_->mode == TapeNode::Mode::kHeld && !node_->codes.defined();
  if (!kept || (node_->own && !node_->partial)) {
    at::Tensor t = view_of(rebuild_->materialize(*node_), geometry_);
    if (node_->own) t.unsafeGetTensorImpl()->set_version_counter(node_->memory->counter);
    return t;
  }
  TORCH_CHECK(counter_.current_version() == version_,
              "[saved tensors] one of the tensors needed for gradients was changed in place: ",
              at::IntArrayRef(geometry_.sizes), " is at version ", counter_.current_version(),
              ", expected ", version_);
  TORCH_CHECK(static_cast<int64_t>(node_->memory->storage.nbytes()) == node_->bytes,
              "[saved tensors] one of the tensors needed for gradients was resized: ",
              at::IntArrayRef(geometry_.sizes));
  at::Tensor t = view_of(node_->memory->storage, geometry_);
  t.unsafeGetTensorImpl()->set_version_counter(counter_);
  return t;
}

bool SavedNode::is_rounded() const {
  const Rebuild::Lock lock(*rebuild_);
  return !rebuild_->roots_of(*node_).empty();
}

std::shared_ptr<const Record> OpTape::record_of(const TapeNode& n) const {
  const bool result = running_ && n.call == calls_ && (n.writing || n.external);
  return result ? running_->record : n.record;
}

bool OpTape::has_near(const at::Tensor& t, int64_t bytes) {
  if (closed_ || thread_ != std::this_thread::get_id() || !is_plain(t)) return false;
  const Rebuild::Lock lock(*rebuild_);
  const TapeNodePtr n = node_of(t);
  if (n->stream != stream_of(t.device())) return false;
  const std::optional<int64_t> needed = rebuild_->recipe_bytes(*n, record_of(*n), Need::kNear);
  return needed && *needed < bytes;
}

// How the reader needs the node once its codes are chosen; `whole`: that it is held in any case.
Need OpTape::choose_codes(TapeNode& n, const at::Tensor& t, const Saving& how, bool& whole) {
  // Codecs encode values, not what else their bits may mean.
  Need need = is_read_in_parts(Geometry::of(t), n) ? how.need : Need::kExact;
  n.squared |= how.need == Need::kBeside;
  if (how.codes.codec()) {
    const auto size = static_cast<int64_t>(t.element_size());
    const bool all = t.is_non_overlapping_and_dense() && t.numel() * size == n.bytes;
    const bool rounds = how.codes.content() == Content::kRounded;
    const auto is_apart = [](const CodedDimension& d) { return d.apart && d.size > 1; };
    if (std::ranges::any_of(how.dimensions, is_apart) && need == how.need &&
        (!how.if_squared || n.squared)) {
      const auto apart = rows_apart(how.dimensions, t.storage_offset(), n.bytes / size);
      const bool can = apart && rebuild_->can_part(n, *apart);
      if (can || (apart && n.count == 0)) {
        rebuild_->part(n, *apart);
        whole |= !can;
      } else {
        need = Need::kExact;
      }
    }
    // Codes that round serve all views of what an operation made.
    if (rounds ? n.coded_bytes < 0 && n.bytes > rebuild_->options().least && need == how.need &&
                     (all || (!n.external && n.geometry.bytes() == n.bytes))
               : n.count == 0 && all) {
      const Geometry& made = n.geometry.bytes() == n.bytes ? n.geometry : Geometry::of(t);
      n.how = how.codes;
      n.coded = t.scalar_type();
      n.coded_row = rounds ? row_of(made, kLeastRow) *
                                 static_cast<int64_t>(c10::elementSize(made.type)) / size
                           : std::max<int64_t>(n.bytes / size, 1);
      rebuild_->choose_codec(n);
    }
  }
  // Codes that were chosen for other readers, or that it cannot have, do not keep signs.
  const auto signs = [&] { return n.how == how.codes || n.how == how.codes.by_channels(); };
  return need == Need::kSigns && !(n.coded_bytes >= 0 && signs()) ? Need::kExact : need;
}

std::optional<OpTape::Saved> OpTape::save(const at::Tensor& t, const Saving& how) {
  if (closed_ || thread_ != std::this_thread::get_id() || !is_plain(t)) return std::nullopt;
  const Rebuild::Lock lock(*rebuild_);
  if (running_) {
    // In place, an operation may save what it is about to write: autograd refuses that later.
    for (const Call::Write& write : running_->writes) {
      if (key_of(write.t) == key_of(t) &&
          t.unsafeGetTensorImpl()->version_counter().current_version() == write.version) {
        return std::nullopt;
      }
    }
  }
  TapeNodePtr n = node_of(t);
  if (n->stream != stream_of(t.device())) return std::nullopt;
  bool whole = how.whole || (how.outside && n->is_of_function());
  if (how.limit) {
    const std::optional<int64_t> needed = rebuild_->recipe_bytes(*n, record_of(*n), how.need);
    if (!needed || *needed >= *how.limit) {
      n->saved_before = true;  // so that its next save counts no bytes
      return std::nullopt;
    }
  }
  const Need need = choose_codes(*n, t, how, whole);
  rebuild_->add_row(how.row);
  const bool shared = n->saved || n->saved_before;
  rebuild_->save(*n, how.row, whole, calls_, need);
  const int64_t bytes = n->external ? std::min(n->geometry.bytes(), n->bytes) : n->bytes;
  return Saved{std::make_shared<SavedNode>(rebuild_, std::move(n), t), bytes, shared};
}

}  // namespace compact
