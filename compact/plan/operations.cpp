// SPDX-License-Identifier: Apache-2.0
#include "compact/plan/operations.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "compact/base/check.h"
#include "compact/base/function_ref.h"
#include "compact/codecs/codec.h"
#include "compact/codecs/meta_times.h"
#include "compact/ops/memory/memory.h"
#include "compact/ops/memory/memory_trace.h"

namespace compact {
namespace {

using c10::IValue;
using Values = c10::ArrayRef<const IValue>;

// Operations that take memory, or view another tensor's; both cost no time.
constexpr std::string_view kNothing[] = {
    "empty",  "empty_like", "empty_strided", "new_empty",    "new_empty_strided",
    "resize", "resize_as",  "set",           "_unsafe_view", "requires_grad"};
// Operations that do not read what they write in place.
constexpr std::string_view kOnlyWrite[] = {"copy",   "fill",      "zero",  "uniform",
                                           "normal", "bernoulli", "random"};
// Operations that read only what is selected of their first operand.
constexpr std::string_view kSelect[] = {"embedding", "index_select", "gather", "index"};
// Operations that change what is selected in place.
constexpr std::string_view kChangeSelected[] = {"index_add", "index_put", "scatter_add", "scatter",
                                                "index_copy"};
// Operations that sum over their operands first, then read them again.
constexpr std::string_view kReadTwice[] = {"native_batch_norm", "native_batch_norm_backward",
                                           "native_layer_norm_backward"};
// Kernels that pack, unpack or project wherever they are called.
constexpr std::string_view kCodecKernels[] = {
    "quantize", "dequantize", "bit_pack", "bit_unpack", "srht", "srht_transpose", "draw"};

// Operations that launch more than one kernel on CUDA.
constexpr std::pair<std::string_view, int64_t> kLaunches[] = {
    // Rows are sorted by the token that they are of, then summed.
    {"embedding_dense_backward", 15},
    // Sums over a row of the output times its gradient; the gradients; that of queries, cast. Or
    // zeros and the gradients.
    {"_scaled_dot_product_flash_attention_backward", 3},
    {"_scaled_dot_product_efficient_attention_backward", 2},
    // Gradients of the input; partial sums for weight and bias.
    {"native_layer_norm_backward", 3},
};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Products of their first two operands; and products that are added to their first operand, made of
// the next two.
constexpr std::string_view kProductNames[] = {"mm", "bmm", "mv", "dot"};
constexpr std::string_view kAddedProducts[] = {"addmm", "baddbmm", "addbmm", "addmv"};

// On CUDA one operation of its own; here it calls others, for each of its tensors.
constexpr std::string_view kNormOfEach = "_foreach_norm";

// One that runs, or a scope of a codec.
struct Running final : at::ObserverContext {
  Operation operation;
  bool codec_scope = false;
  bool nothing = false;  // takes no time, nor is it a part of what called it
  bool whole = false;    // what it calls counts as part of it
  bool leaf = true;      // nothing that takes time was called by it
  bool selects = false, writes = false;
  double each_output = 0;           // operations of products for each element of the output
  std::vector<bool> fresh_outputs;  // which outputs are tensors of their own
};

thread_local std::vector<Operation>* recorded = nullptr;
thread_local std::vector<Running*> running;
thread_local std::string failure;  // the latest operation that could not be looked at

double bytes_of(const at::Tensor& t) {
  // An expanded tensor counts as the memory that it has.
  return t.defined() && t.is_meta() && t.has_storage()
             ? static_cast<double>(std::min(t.nbytes(), t.storage().nbytes()))
             : 0;
}

void each_tensor(const IValue& value, FunctionRef<void(const at::Tensor&)> f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!value.isList()) return;
  for (const IValue& element : value.toListRef()) {
    if (element.isTensor()) f(element.toTensor());
  }
}
double bytes_of(const IValue& value) {
  double sum = 0;
  each_tensor(value, [&](const at::Tensor& t) { sum += bytes_of(t); });
  return sum;
}

// Sums of squares of 65,536 elements, 2,240 of them or 770 tensors a launch, into zeros, then those
// of each tensor, 400 a launch: LibTorch's multi_tensor_apply with CUDA 13.
int64_t launches_of_norms(const IValue& tensors) {
  const auto parts = [](int64_t count, int64_t most) { return (count + most - 1) / most; };
  int64_t count = 0, chunks = 0;
  each_tensor(tensors, [&](const at::Tensor& t) {
    ++count;
    chunks += parts(t.numel(), 65536);
  });
  return 1 + std::max(parts(chunks, 2240), parts(count, 770)) + parts(count, 400);
}

void add(Operation operation) {
  if (std::ranges::any_of(running, &Running::whole)) return;
  // A codec's operations do not count as part of the operation around them: tensors are packed
  // where they are saved, in the middle of an operation.
  for (auto r = running.rbegin(); r != running.rend() && !operation.codec; ++r) {
    (*r)->leaf = false;
    operation.codec = (*r)->codec_scope;
  }
  operation.moment = traced_moment();
  const int64_t times = MetaTimes::active();
  operation.products *= static_cast<double>(times);
  operation.bytes *= static_cast<double>(times);
  operation.launches *= times;
  recorded->push_back(std::move(operation));
}

// Arguments by their names.
struct Arguments {
  const c10::FunctionSchema& schema;
  Values values;

  const IValue* find(std::string_view name) const {
    const auto index = schema.argumentIndexWithName(name);
    return index && static_cast<size_t>(*index) < values.size() ? &values[*index] : nullptr;
  }
  bool is_true(std::string_view name) const {
    const IValue* value = find(name);
    return value && value->isBool() && value->toBool();
  }
  at::Tensor tensor(size_t i) const {
    return i < values.size() && values[i].isTensor() ? values[i].toTensor() : at::Tensor();
  }
};

double elements(const at::Tensor& t) { return static_cast<double>(t.numel()); }

// Scores and sums of them, two operations for each pair of positions and each of a head's
// dimensions; backward computes the scores again, and two gradients of either. Causal attention
// takes half of that.
double attention_products(const Arguments& a, bool backward) {
  const at::Tensor q = a.find("query")->toTensor(), v = a.find("value")->toTensor();
  const double pairs =
      elements(q) / static_cast<double>(q.size(-1)) * static_cast<double>(v.size(-2));
  const auto of_q = static_cast<double>(q.size(-1)), of_v = static_cast<double>(v.size(-1));
  const double whole = 2 * pairs * (backward ? 3 * of_q + 2 * of_v : of_q + of_v);
  return a.is_true("is_causal") ? whole / 2 : whole;
}

void count_products(std::string_view name, const Arguments& a, Running& r) {
  const auto product = [&](size_t first) {
    const at::Tensor x = a.tensor(first), y = a.tensor(first + 1);
    const double columns = y.dim() > 1 ? static_cast<double>(y.size(-1)) : 1;
    r.operation.products = 2 * elements(x) * columns;
    r.operation.type = x.scalar_type();
  };
  const auto of_filter = [](const at::Tensor& w) {
    return 2 * elements(w) / static_cast<double>(std::max<int64_t>(w.size(0), 1));
  };
  if (is_one_of(name, kProductNames)) return product(0);
  if (is_one_of(name, kAddedProducts)) return product(1);
  if (name == "convolution") {
    r.each_output = of_filter(a.tensor(1));
    r.operation.type = a.tensor(0).scalar_type();
  } else if (name == "convolution_backward") {
    const auto wanted = a.find("output_mask")->toBoolList();
    r.operation.products = elements(a.tensor(0)) * of_filter(a.tensor(2)) * (wanted[0] + wanted[1]);
    r.operation.type = a.tensor(0).scalar_type();
  } else if (name.starts_with("_scaled_dot_product_") && a.find("query")) {
    const bool backward = name.ends_with("_backward");
    r.operation.products = attention_products(a, backward);
    r.operation.type = a.find("query")->toTensor().scalar_type();
    const IValue* dropout = a.find("dropout_p");
    r.operation.random = dropout && dropout->isDouble() && dropout->toDouble() > 0;
    // In f32 the sums are a product, its sum and a copy.
    const bool sums_apart = r.operation.type == at::kFloat && name.find("efficient") != name.npos;
    if (backward && sums_apart) r.operation.launches += 3;
  }
}

void count_arguments(std::string_view name, const Arguments& a, Running& r) {
  const auto& arguments = a.schema.arguments();
  const bool only_write = is_one_of(name, kOnlyWrite);
  const auto is_written = [&](size_t i) {
    return arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
  };
  double read = 0, written = 0, unchanged = 0, host = 0;
  for (size_t i = 0; i < a.values.size() && i < arguments.size(); ++i) {
    const double bytes = bytes_of(a.values[i]);
    const bool changes = is_written(i) && !only_write && !arguments[i].kwarg_only();
    each_tensor(a.values[i], [&](const at::Tensor& t) {
      if (lies_on_host(t)) host += (changes ? 2 : 1) * bytes_of(t);
    });
    if (is_written(i)) {
      written += bytes;
      if (changes) read += bytes;
    } else {
      read += bytes;
      unchanged += bytes;
    }
  }
  const bool in_place = !arguments.empty() && is_written(0);
  if (in_place && is_one_of(name, kChangeSelected)) {
    // The first operand is at most as large as what it is changed by.
    const double changed = std::min(written, unchanged);
    read = unchanged + changed;
    written = changed;
  }
  if (is_one_of(name, kReadTwice)) read *= 2;
  r.operation.host = host > 0;
  r.operation.bytes = r.operation.host ? host : read + written;
  r.writes = written > 0;
}

void look(const at::RecordFunction& f, Running& r) {
  if (f.scope() == at::RecordScope::USER_SCOPE) {
    r.codec_scope = std::string_view(f.name()) == kCodecScope;
    r.nothing = true;
    return;
  }
  const auto name = f.operator_name();
  const auto handle = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  r.nothing = !handle;
  if (!handle) return;
  std::string_view plain = f.name();
  plain.remove_prefix(plain.rfind(':') == plain.npos ? 0 : plain.rfind(':') + 1);
  r.operation.name = plain;
  if (plain.ends_with('_')) plain.remove_suffix(1);
  const c10::FunctionSchema& schema = handle->schema();
  for (const auto& [several, launches] : kLaunches) {
    if (plain == several) r.operation.launches = launches;
  }
  r.nothing = is_one_of(plain, kNothing) || handle->hasTag(at::Tag::inplace_view);
  for (const c10::Argument& result : schema.returns()) {
    const c10::AliasInfo* alias = result.alias_info();
    r.nothing |= alias && !alias->isWrite();
    r.fresh_outputs.push_back(!alias);
  }
  if (r.nothing) return;
  const Arguments arguments{schema, f.inputs()};
  r.whole = plain == kNormOfEach;
  if (r.whole) r.operation.launches = launches_of_norms(f.inputs()[0]);
  count_arguments(plain, arguments, r);
  count_products(plain, arguments, r);
  r.selects = is_one_of(plain, kSelect);
  // Less the table; what is selected is as large as the output.
  if (r.selects) r.operation.bytes -= bytes_of(f.inputs()[0]);
}

// LibTorch takes no exception from here.
std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& f) {
  auto r = std::make_unique<Running>();
  try {
    look(f, *r);
  } catch (const std::exception& e) {
    r->nothing = true;
    failure = cat(f.name(), ": ", e.what());
  }
  running.push_back(r.get());
  return r;
}

void leave(const at::RecordFunction& f, at::ObserverContext* context) {
  auto& r = *static_cast<Running*>(context);
  std::erase(running, &r);
  if (r.nothing || !r.leaf || !recorded) return;
  double fresh = 0;
  for (size_t i = 0; i < f.outputs().size() && i < r.fresh_outputs.size(); ++i) {
    const IValue& value = f.outputs()[i];
    if (r.fresh_outputs[i]) fresh += bytes_of(value);
    if (i == 0 && value.isTensor() && value.toTensor().defined()) {
      r.operation.products += r.each_output * elements(value.toTensor());
    }
  }
  if (!r.operation.host) r.operation.bytes += r.selects ? 2 * fresh : fresh;
  // Checks that look at shapes alone return no tensor and write none.
  const bool writes = fresh > 0 || r.writes;
  if (writes) add(std::move(r.operation));
}

}  // namespace

OperationRecorder::OperationRecorder()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(enter, leave)
              .needsInputs(true)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}))),
      watch_([](const kernels::KernelCall& call) {
        add({.name = call.name,
             .codec = is_one_of(call.name, kCodecKernels),
             .bytes = static_cast<double>(call.bytes),
             .launches = call.launches});
      }) {
  recorded = &operations_;
  failure.clear();
}

OperationRecorder::~OperationRecorder() {
  at::removeCallback(handle_);
  recorded = nullptr;
  running.clear();
}

std::vector<Operation> OperationRecorder::take() {
  COMPACT_CHECK(failure.empty(), "[plan] ", std::exchange(failure, {}));
  return std::exchange(operations_, {});
}

}  // namespace compact
