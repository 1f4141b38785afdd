// SPDX-License-Identifier: Apache-2.0
// Decides which nodes of a tape are held and which are rebuilt, and rebuilds them. A node is needed
// while saved tensors, or recipes of needed nodes, refer to it. A needed node is held, or has a
// recipe: its operation runs again on its inputs, which are then needed. Others hold no memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compact/codecs/code_rows.h"
#include "compact/codecs/codec.h"
#include "compact/ops/policy/treatment.h"
#include "compact/ops/scopes/geometry_impl.h"
#include "compact/ops/scopes/live_bytes.h"
#include "compact/ops/scopes/rebuild_rules_impl.h"

namespace compact {

struct TapeNode;
using TapeNodePtr = std::shared_ptr<TapeNode>;

// Held memory, shared by all of its contents that are needed.
struct HeldStorage {
  HeldStorage(c10::Storage what, int64_t counted, std::shared_ptr<LiveBytes> all)
      : storage(std::move(what)), bytes(counted), live(std::move(all)) {
    live->add(bytes);
  }
  ~HeldStorage() { live->add(-bytes); }
  HeldStorage(const HeldStorage&) = delete;

  c10::Storage storage;
  int64_t bytes;  // 0: a parameter's
  // Tensors unpacked from our copy share it, so that later readers notice writes to them.
  c10::VariableVersion counter{0};
  std::shared_ptr<LiveBytes> live;
  std::vector<std::weak_ptr<TapeNode>> users;
};

// A call that may run again.
struct Record {
  struct Input {
    size_t argument;
    int element;  // of a list, or -1
    bool written;
    TapeNodePtr node;
    Geometry geometry;
  };
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // None in the places of tensors
  c10::SmallVector<Input, 3> inputs;
  c10::SmallVector<std::weak_ptr<TapeNode>, 1> outputs;
  int64_t traffic = 0;     // bytes read and written
  int threads = 1;         // bits may depend on how work was shared out
  bool grad_mode = true;   // which kernels may ask for
  bool mkldnn = true;      // whether it may be used
  bool heavy = false;      // runs again under a budget only
  bool smooth = false;     // it may run again on rounded inputs
  uint8_t signs = kPlain;  // of its result
  uint64_t precision = 0;  // of a heavy one: precision_settings()
};

// The contents that one is rebuilt from and that are rounded, or may be rounded later on.
using Roots = c10::SmallVector<const TapeNode*, 2>;
void add_roots(Roots& all, const Roots& more);

// How a reader needs a saved tensor.
enum class Need : uint8_t {
  kExact,
  kSigns,   // codes will do that keep signs, what is rebuilt must be exact
  kBeside,  // exact until a reader of kNear has it rounded
  kNear,
};

// One content of one storage. Views of it are geometry only.
struct TapeNode : std::enable_shared_from_this<TapeNode> {
  enum class Mode : uint8_t { kNone, kHeld, kRecipe };

  TapeNode(const at::Tensor& t, uint64_t call);
  // Whether its storage lives and has this content.
  bool is_there() const;
  // Memory of NumPy and the like, which is written unseen at any time.
  bool is_foreign() const;
  // Whether it was made with grad mode off, as in an autograd function of C++.
  bool is_of_function() const { return record && !record->grad_mode; }
  // Tensors that do not share a version may share a storage. Every one that is seen is watched.
  void watch(const at::Tensor& t);
  bool is_unwritten() const;
  void note_versions();
  // Rows that groups of its codes lie within; one: codes are not chosen, or lose nothing.
  CodeRows rows_of_codes() const;
  void add_follower(const std::shared_ptr<TapeNode>& n);

  c10::weak_intrusive_ptr<c10::StorageImpl> weak;  // keeps the address from being reused
  int64_t bytes;                                   // of the storage
  Geometry geometry;                               // of the tensor that was made, or seen first
  struct Version {
    c10::VariableVersion counter;
    uint32_t version;  // of the last write that is a part of this content, or beside it
  };
  c10::SmallVector<Version, 1> versions;
  uint64_t call;                                // in which it was made
  std::vector<std::weak_ptr<TapeNode>> follow;  // what is made of it

  std::shared_ptr<const Record> record;  // null: it cannot be made again
  int output = 0;                        // a result's number, or -1 - an input's that is written
  int depth = 0;                         // of its history

  bool free = false;          // a parameter's or a buffer's: no memory of ours
  bool external = false;      // made by code that we do not see, which may write it again
  bool leaf = false;          // a parameter of no known name, which may be freed: it is copied
  bool grad = false;          // it depends on parameters that are trained
  bool stale = false;         // its storage has been written since
  bool saved = false;         // by an operation
  bool saved_before = false;  // its storage was, with another content
  bool pinned = false;        // it is held: a policy says so, or it cuts a long path
  bool writing = false;       // the operation that makes it runs
  bool two_values = false;    // it has at most two values, as its operations say
  bool not_negative = false;  // none of them is below 0, as they say
  // Under a policy that rounds: readers need its values, so that it is never rounded; or, where it
  // is rebuilt, it must be exact.
  bool exact = false, strict = false;
  bool squared = false;  // by an operation that saved it
  uint64_t stream = 0;   // that made it
  std::string name;      // of a parameter or buffer

  int count = 0, handles = 0;  // all that need it; saved tensors among these
  Mode mode = Mode::kNone;
  std::shared_ptr<HeldStorage> memory;  // where it is held, or free and needed
  bool own = false;                     // `memory` is a copy of ours
  bool partial = false;                 // `memory` has been written beside what recipes read of it
  Encoded codes;                        // or it is held so
  Treatment how;                        // codecs, where it is saved
  CodecPtr codec;                       // for rows of `coded_row` elements, or for `apart`
  at::ScalarType coded = at::kByte;     // the type of the elements that are encoded
  int64_t coded_row = 0;
  int64_t coded_bytes = -1, held_bytes = 0;
  CodeRows apart;   // where there are several: those that a reader divides by scales of their own
  double work = 0;  // bytes to move while it is rebuilt; what several read counts for each
  Roots roots;      // of its recipe
  size_t row = 0;   // of the report
  // Under a budget. readers: calls that saved it. reach: bytes of the longest path to it from nodes
  // held for good; products: heavy operations on that path. sum: the residual sum (of a path and a
  // much longer one with more of these) that it is, or from which cheap operations alone make it.
  c10::SmallVector<uint64_t, 2> readers;
  int64_t reach = 0, products = 0;
  std::weak_ptr<TapeNode> sum;
};

struct RebuildOptions {
  int64_t least = 4096;    // bytes; smaller tensors are held
  double most_work = 16;   // bytes to move for a byte that is not held
  double gain = 1.0 / 64;  // bytes freed for a byte to move
  uint64_t near = 80;      // calls back from the tensor asked for: kept for its other readers
  bool budgeted = false;   // heavy operations may run again, where a budget asks for it
  bool named = false;      // parameters are known by name; other leaves may be freed (FSDP)
  bool rounds = false;     // codecs may round what is held
  size_t roots = 2;        // at most so many errors add up in what is rebuilt
  uint64_t noise = 0;      // key of stochastic rounding
};

// Whether elements of these views are the node's, or parts of its complex ones, not other bits.
bool is_read_in_parts(const Geometry& as, const TapeNode& n);

// Whether a tensor that was encoded so had a NaN or an infinity: the offset, step or mean of its
// group is then not finite. Not for tensors of a GPU, whose codes may not be there yet.
bool lost_a_value(const Encoded& encoded);

// The stream that this thread's work for the device goes to.
uint64_t stream_of(c10::Device device);

// Several threads may use it, each while it holds a Lock.
class Rebuild {
 public:
  Rebuild(RebuildOptions options, std::shared_ptr<LiveBytes> live)
      : options_(options), live_(std::move(live)) {}

  // Frees tensors that are no longer needed after unlocking, since that may call Python.
  class Lock {
   public:
    explicit Lock(Rebuild& rebuild) : rebuild_(rebuild), lock_(rebuild.mutex_) {}
    ~Lock() {
      const Trash trash = std::exchange(rebuild_.trash_, {});
      rebuild_.freeing_ = 0;
      lock_.unlock();
    }
    Lock(const Lock&) = delete;

   private:
    Rebuild& rebuild_;
    std::unique_lock<std::mutex> lock_;
  };

  const RebuildOptions& options() const { return options_; }
  // A tensor of the node was saved by a call; `whole`: hold it in any case.
  void save(TapeNode& n, size_t row, bool whole, uint64_t reader, Need need);
  // Whether the values are there that part() would encode again, and no reader needs other rows.
  bool can_part(const TapeNode& n, const CodeRows& rows, int depth = 0) const;
  // The same for all that the node would be rebuilt from.
  bool can_part_inputs(const TapeNode& n, const CodeRows& rows, int depth = 0) const;
  // No group of codes of the node, or of what it is rebuilt from, has values of two of these rows
  // from now on.
  void part(TapeNode& n, const CodeRows& rows);
  // Sets codec and coded_bytes of a node by its how, coded, coded_row and apart.
  void choose_codec(TapeNode& n);
  Roots roots_of(const TapeNode& n) const;
  // Inputs that are, or may be, rounded.
  RoundedInputs rounded_of(const Record& record) const;
  // Sets reach, products and sum of a node that a call has made.
  void note_reach(TapeNode& n, const Record& record) const;
  // Where that cuts a long path in two, holds the node, or the sum that it is made from, for good.
  void cut(TapeNode& n);
  // Rebuilds tensors instead of holding them, those that cost the least time for their bytes first,
  // until held bytes, and those that live while a part is rebuilt, are within the budget. Returns
  // whether they are.
  bool keep_within(int64_t budget);
  // Bytes of the largest part that is rebuilt at a time.
  int64_t span() const { return span_; }
  // Bytes that would be held beside those held already, were it rebuilt by `record`; nullopt: it
  // cannot be.
  std::optional<int64_t> recipe_bytes(TapeNode& n, const std::shared_ptr<const Record>& record,
                                      Need need);
  void retain(TapeNode& n);
  void release(TapeNode& n);
  // The operation of an already saved node has been recorded: rebuilds the node if that pays.
  void decide_again(TapeNode& n);
  // These parts of the node's storage are about to be written. Returns the nodes of this storage
  // whose recipes read only bytes outside `written`; the write leaves them valid.
  std::vector<TapeNodePtr> before_write(const TapeNode& n, c10::ArrayRef<Geometry> written);
  // Copies held memory that user code may still write to, if a recipe reads it.
  void close();
  c10::Storage materialize(TapeNode& n);

  // Bytes held for each row of the report and whether it has a recipe, as decided last.
  struct Row {
    int64_t stored = 0;
    bool recipe = false;
    Treatment how;
  };
  const std::vector<Row>& rows() const { return rows_; }
  void add_row(size_t row) { rows_.resize(std::max(rows_.size(), row + 1)); }

 private:
  struct Choice {
    bool possible = false;
    int64_t bytes = 0;
    double work = 0;
    using Held = std::pair<TapeNode*, int64_t>;  // and the bytes that it takes more than now
    c10::SmallVector<Held, 4> held;
    Roots roots;
    bool holds(const TapeNode& n) const { return held.size() == 1 && held[0].first == &n; }
  };
  struct Trash {
    std::vector<std::shared_ptr<HeldStorage>> storages;
    std::vector<Encoded> codes;
  };
  using Memo = std::array<std::unordered_map<TapeNode*, Choice>, 2>;  // by exact_
  using Local = std::unordered_map<TapeNode*, c10::Storage>;

  // Whether the operation may run again: heavy ones only while tensors are dropped for a budget.
  bool may_run(const std::shared_ptr<const Record>& record) const {
    return record && (!record->heavy || letting_go_);
  }
  // Sets a member for a while.
  template <class T>
  class Within {
   public:
    Within(T& member, T value) : member_(member), before_(std::exchange(member, value)) {}
    ~Within() { member_ = before_; }
    Within(const Within&) = delete;

   private:
    T& member_;
    T before_;
  };
  struct Offer {
    double cost = 0;  // work for a byte that is freed
    int64_t freed = 0, span = 0;
    TapeNodePtr node;
  };
  // The cost of letting go of a held node; nullopt: impossible, or frees nothing.
  std::optional<Offer> offer(const TapeNodePtr& n);
  // The offers that together free more than they raise the span by, cheapest first.
  std::vector<Offer> offers();
  int64_t span_of(TapeNode& n, const Choice& choice, int64_t enough) const;
  // Whether it is held until a budget asks for it, since too much would be rebuilt at a time.
  bool spans_much(TapeNode& n, const Choice& choice) const;
  Choice best(TapeNode& n, Memo& memo, int depth);
  Choice inputs_of(const TapeNode& n, const Record& record, Memo& memo, int depth);
  // Whether it is never rounded.
  bool is_steady(const TapeNode& n) const;
  // Whether the operation must make the node from exact values.
  bool needs_exact(const TapeNode& n, const Record& record) const;
  bool has_codes(const TapeNode& n) const;
  bool is_near(const Choice& choice) const { return choice.roots.size() <= options_.roots; }
  void hold_again(TapeNode& n);
  // For a node that is needed and may be rounded.
  void make_exact(TapeNode& n);
  std::shared_ptr<HeldStorage> original(const TapeNode& n) const;
  std::shared_ptr<HeldStorage> own(c10::Storage storage) const;
  void keep_original(TapeNode& n);
  int64_t bytes_to_hold(const TapeNode& n) const;
  bool is_worth(const TapeNode& n, const Record& record, const Choice& choice) const;
  void hold(TapeNode& n);
  void encode(TapeNode& n);
  void drop(TapeNode& n);
  void make_recipe(TapeNode& n);
  void release_inputs(TapeNode& n);
  void part_inputs(TapeNode& n);
  void let_go(TapeNode& n);
  void release_followers(TapeNode& n);
  bool needs_any(const TapeNode& n, c10::ArrayRef<Geometry> written) const;
  void check(const TapeNode& n) const;
  c10::Storage memory_of(TapeNode& n, Local& local);
  c10::Storage run(TapeNode& n, const TapeNode& target, Local& local);
  c10::Storage made(TapeNode& n, const TapeNode& target, Local& local);

  RebuildOptions options_;
  std::mutex mutex_;
  std::shared_ptr<LiveBytes> live_;
  Trash trash_;
  // Storages held as they are, by address.
  std::unordered_map<const void*, std::weak_ptr<HeldStorage>> originals_;
  std::vector<std::weak_ptr<TapeNode>> held_;
  std::vector<Row> rows_;
  std::unordered_map<std::string, CodecPtr> codecs_;  // by how rows lie, and treatment
  size_t row_ = 0;                                    // of what is being saved
  // Under a budget: tensors that each call saved; the largest span, and how large one may be.
  std::unordered_map<uint64_t, std::vector<std::weak_ptr<TapeNode>>> saved_by_;
  int64_t budget_ = 0, span_ = 0, most_span_ = 0, freeing_ = 0;
  int64_t most_live_ = std::numeric_limits<int64_t>::max();  // in the backward pass
  std::pair<int64_t, size_t>
      tried_;  // bytes and tensors held, with which nothing was left to let go
  bool letting_go_ = false;
  bool exact_ = false;  // what is chosen now must be made of exact values
  bool closed_ = false;
};

}  // namespace compact
