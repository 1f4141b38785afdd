// SPDX-License-Identifier: Apache-2.0
// Both halves of a hook of saved tensors: pack() replaces a tensor that autograd saves, unpack()
// gives it back. The hooks are installed by SavedTensorScope, or by Python.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compact/codecs/code_rows.h"
#include "compact/codecs/codec.h"
#include "compact/ops/policy/policy.h"
#include "compact/ops/scopes/live_bytes.h"
#include "compact/ops/scopes/saved_tensors.h"

namespace compact {

class FusedAttention;
class OpTape;
class SavedTensorNames;
struct Holding;

// Held in place of one saved tensor. It holds no graph and outlives its store.
class HeldTensor {
 public:
  // The tensor, or what its codecs give, without history. Throws c10::Error where it is held whole,
  // or as the parameter that it is a copy of, and that was changed in place since: under hooks
  // autograd does not compare versions.
  at::Tensor unpack() const;

  bool defined() const { return memory_ != nullptr; }
  // Whether it is held in codes that do not give its values back exactly.
  bool is_rounded() const;

 private:
  friend class SavedTensorStore;
  struct Memory;  // shared by all operations that saved the tensor
  std::shared_ptr<Memory> memory_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  bool strided_ = false;  // a view of plain memory
  bool flat_ = false;     // dense: all of a piece of memory, in some order
  // Where set, recomputes the tensor, which takes no memory: attention's values, or its logarithms.
  std::shared_ptr<const FusedAttention> attention_;
  bool values_ = false;
};

// Holds what forward passes save, one pass after another. Names operations where an OpWatch lives
// on the thread that packs; several threads may pack at a time.
class SavedTensorStore {
 public:
  SavedTensorStore(Policy policy, SavedTensorOptions options);
  ~SavedTensorStore();
  SavedTensorStore(const SavedTensorStore&) = delete;

  // Must see the operations of this pass, if the policy has tensors rebuilt; else null.
  const std::shared_ptr<OpTape>& tape() const { return tape_; }

  // A tensor that autograd is about to save. Subclasses of Python and what functorch wraps are kept
  // as they are. `again`: it is what a checkpoint computes from a second time. Throws InputError
  // where the policy names a treatment of segments, and where the budget cannot be kept.
  HeldTensor pack(const at::Tensor& t, bool again = false);
  // The same for a tensor that is recomputed from others, else nullopt. A caller that keeps small
  // tensors itself asks this for them first: beside rounded arguments their values change, too.
  std::optional<HeldTensor> pack_made_again(const at::Tensor& t);

  // Begins another pass: names and report begin again. What is held stays.
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  void begin(Named parameters, Named buffers, uint64_t noise);
  // Later passes share nothing with what was packed so far; releases the parameters.
  void forget();

  // The tensors packed since the last pass began.
  SavedTensorReport report() const;
  // Whether anything was rounded since then.
  bool rounded() const;
  // Bytes of all that is held and lives, parameters excluded.
  int64_t live_bytes() const { return all_live_->bytes(); }

 private:
  using Memory = HeldTensor::Memory;
  // A memory, its version, how it is viewed and read; and what is held of it.
  using Key = std::tuple<const void*, uint32_t, at::ScalarType, int64_t, std::vector<int64_t>,
                         std::vector<int64_t>, Content>;
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being reused
    std::weak_ptr<Memory> memory;
  };
  void start_tape();
  void stop_tape();
  std::vector<SavedTensor> taped_rows() const;
  int64_t budget_now() const;     // of what this pass may hold
  void keep_budget(bool begins);  // begins: before another tensor is saved
  std::shared_ptr<Memory> hold(const at::Tensor& t, bool strided, bool again);
  // Holds the tensor on the tape; null: the caller must hold it, perhaps only its signs
  // (`held.how`).
  std::shared_ptr<Memory> on_tape(const at::Tensor& t, SavedTensor& row, Holding& held);
  // If `t` is a copy of a parameter in another type, holds the parameter in its place; else null.
  std::shared_ptr<Memory> as_parameter(const at::Tensor& t) const;
  std::shared_ptr<Memory> whole(const at::Tensor& t) const;
  // Replaces what the memory holds and updates the row of the operation that saved the tensor
  // first: in codes, or whole where they would lose a NaN or an infinity; or whole for an operation
  // that reads it exactly. `bytes`: 0 where it is held whole already.
  void put_codes(Memory& memory, const at::Tensor& t, const Treatment& how, const CodeRows& apart);
  void put_whole(Memory& memory, const at::Tensor& t, const std::string& exact_for, int64_t bytes);
  void put(Memory& memory, const Treatment& how, int64_t bytes, const std::string& exact_for);
  std::shared_ptr<Memory> found(const Key& key) const;

  Policy policy_;
  ByteBudget budget_;
  SavedTensorOptions options_;
  mutable std::mutex mutex_;
  std::unique_ptr<SavedTensorNames> names_;
  std::vector<SavedTensor> saved_;
  bool rounded_ = false;
  int64_t saved_bytes_ = 0, saved_before_ = 0, span_ = 0;  // of this pass, and of the one before
  std::map<Key, Entry> entries_;
  std::map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> made_again_;
  std::shared_ptr<LiveBytes> all_live_, live_;  // of all passes, and of this one
  std::shared_ptr<OpTape> tape_;
  uint64_t saved_in_ = 0;      // the call of the operation that saved last
  size_t counted_ = 0;         // rows of the report, in saved_bytes_
  int64_t approached_ = 0;     // the least that was kept of a part that cannot be
  std::vector<size_t> taped_;  // rows of the report that the tape decides
};

}  // namespace compact
