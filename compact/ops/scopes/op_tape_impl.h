// SPDX-License-Identifier: Apache-2.0
// Records which contents of which storages the operations of a forward pass read and made. Holds no
// memory; when a tensor is saved, Rebuild decides by it what is held. An operation's record dies
// with its results.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "compact/ops/scopes/rebuild_impl.h"

namespace compact {

// The key of a storage.
inline const void* key_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

// A saved tensor, as a view of a node.
class SavedNode {
 public:
  SavedNode(std::shared_ptr<Rebuild> rebuild, TapeNodePtr node, const at::Tensor& t);
  ~SavedNode();
  SavedNode(const SavedNode&) = delete;

  // Throws c10::Error where it, or what it is rebuilt from, was changed in place.
  at::Tensor unpack() const;
  // Whether it, or what it is rebuilt from, is held in codes that round, or may be later on.
  bool is_rounded() const;

 private:
  std::shared_ptr<Rebuild> rebuild_;
  TapeNodePtr node_;
  Geometry geometry_;
  c10::VariableVersion counter_;
  uint32_t version_;
};

class OpTape {
 public:
  // A parameter by its name.
  using Parameter = std::pair<std::string, at::Tensor>;
  // The parameter that lies in a storage; nullopt: none that is known.
  using ParameterOf = std::function<std::optional<Parameter>(const void* storage)>;
  OpTape(RebuildOptions options, std::shared_ptr<LiveBytes> live, ParameterOf parameter);

  struct Call;
  // One operation of this thread, from its arguments to its results; null where it need not be
  // recorded.
  std::unique_ptr<Call> begin(const OpRule& rule, c10::ArrayRef<const c10::IValue> arguments);
  void end(std::unique_ptr<Call> call, c10::ArrayRef<const c10::IValue> results);
  // Records a result whose operations were not seen.
  void note_made(const at::Tensor& t);
  // Operations between these calls are never run again: they are inside a user's function.
  void begin_opaque() { ++opaque_; }
  void end_opaque() { --opaque_; }

  struct Saved {
    std::shared_ptr<SavedNode> node;
    int64_t bytes = 0;    // of its memory
    bool shared = false;  // its memory was saved before
  };
  struct Saving {
    size_t row = 0;        // of the report
    bool whole = false;    // it is held whatever it is made of
    bool outside = false;  // of any operation, so that it is held where a function may have made it
    Treatment codes = {};  // codecs, for where it is held
    Need need = Need::kExact;
    std::vector<CodedDimension> dimensions = {};  // Holding::dimensions
    bool if_squared = false;                      // Holding::if_squared
    std::optional<int64_t> limit = {};  // what others need to hold it; the recipe must need less
  };
  // Holds a tensor that autograd saves, or a recipe of it; nullopt: the caller must hold it.
  std::optional<Saved> save(const at::Tensor& t, const Saving& how);
  // Whether it is held, or can be rebuilt, for a reader that takes rounded values, and costs less
  // than `bytes` more.
  bool has_near(const at::Tensor& t, int64_t bytes);
  // Whether the operations that made `t` give at most two values; a tensor without memory cannot be
  // inspected.
  bool has_two_values(const at::Tensor& t) const;
  Rebuild::Row row(size_t row) const;
  // Rebuild::keep_within(), for the tensors saved so far.
  bool keep_within(int64_t budget);
  int64_t span() const;
  uint64_t calls() const;  // until now
  // The forward pass is over.
  void close();

 private:
  TapeNodePtr node_of(const at::Tensor& t);
  Need choose_codes(TapeNode& n, const at::Tensor& t, const Saving& how, bool& whole);
  TapeNodePtr put(const at::Tensor& t);
  void note_write(Call& call, const at::Tensor& t, const TapeNodePtr& old,
                  c10::ArrayRef<Geometry> written);
  bool makes_two_values(const Call& call) const;
  void sweep();
  // The record of the operation that makes the tensor, also while that operation runs.
  std::shared_ptr<const Record> record_of(const TapeNode& n) const;

  std::shared_ptr<Rebuild> rebuild_;
  ParameterOf parameter_;
  bool named_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::unordered_map<const void*, TapeNodePtr> index_;
  size_t sweep_at_ = 256;
  uint64_t calls_ = 0;
  int opaque_ = 0;
  Call* running_ = nullptr;
  bool closed_ = false;
};

struct OpTape::Call {
  const OpRule* rule = nullptr;
  std::shared_ptr<Record> record;  // null where it cannot run again
  bool trained = false;            // an input has a gradient
  bool not_negative = false;       // no value of its results is below 0
  c10::SmallVector<at::Tensor, 4> inputs;
  struct Write {
    at::Tensor t;
    TapeNodePtr before, after;
    size_t input;
    uint32_t version;
    std::vector<TapeNodePtr> beside;  // contents that stay as they are
  };
  c10::SmallVector<Write, 1> writes;
};
}  // namespace compact
