// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// One boxed kernel serves every lowered operator: it turns the stack into a plain request, lets
// libtorus record it, and wraps the results. In-place and out= overloads share the lowering of the
// functional one; their schemas say which arguments are written.
#include "dispatch.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include "aot.h"
#include "fallback.h"
#include "generator.h"
#include "hooks.h"
#include "places.h"
#include "stand_in.h"
#include "tensor.h"
#include "torus/capture.h"

namespace torus {
namespace {

enum class Kind : uint8_t {
  Ignored,
  Tensor,
  TensorList,
  Indices,
  Number,
  Ints,
  Doubles,
  Scalars,
  Bools,
  String,
  Dtype,
  Generator
};
enum class Form : uint8_t { Functional, InPlace, Out };

struct Record {
  const torus_op_t *op;
  torus_op_traits_t traits;
  std::string name; // "aten::add.Tensor"
  Form form = Form::Functional;
  std::vector<Kind> kinds;  // per argument
  std::vector<int> written; // arguments that receive results, in order
  int return_count = 0;
  bool returns_list = false;
  int generator = -1;
};

// ---- schemas ----

Kind kind_of_type(const c10::Type &type) {
  switch (type.kind()) {
  case c10::TypeKind::OptionalType:
    return kind_of_type(*type.castRaw<c10::OptionalType>()->getElementType());
  case c10::TypeKind::TensorType: return Kind::Tensor;
  case c10::TypeKind::IntType:
  case c10::TypeKind::SymIntType:
  case c10::TypeKind::FloatType:
  case c10::TypeKind::BoolType:
  case c10::TypeKind::NumberType: return Kind::Number;
  case c10::TypeKind::StringType: return Kind::String;
  case c10::TypeKind::GeneratorType: return Kind::Generator;
  default: return Kind::Ignored;
  }
}

Kind kind_of_list(const c10::Type &element) {
  switch (element.kind()) {
  case c10::TypeKind::OptionalType: return Kind::Indices; // Tensor?[]: only indexing has it
  case c10::TypeKind::TensorType: return Kind::TensorList;
  case c10::TypeKind::IntType:
  case c10::TypeKind::SymIntType: return Kind::Ints;
  case c10::TypeKind::FloatType: return Kind::Doubles;
  case c10::TypeKind::NumberType: return Kind::Scalars;
  case c10::TypeKind::BoolType: return Kind::Bools;
  default: return Kind::Ignored;
  }
}

const c10::Type &without_optional(const c10::Type &type) {
  return type.kind() == c10::TypeKind::OptionalType
             ? *type.castRaw<c10::OptionalType>()->getElementType()
             : type;
}

Kind kind_of(const c10::Argument &argument) {
  const c10::Type &real = without_optional(*argument.real_type());
  if (real.kind() == c10::TypeKind::ScalarTypeType) return Kind::Dtype;
  if (real.kind() == c10::TypeKind::LayoutType || real.kind() == c10::TypeKind::MemoryFormatType)
    return Kind::Ignored;
  const c10::Type &type = without_optional(*argument.type());
  if (const auto *list = type.castRaw<c10::ListType>())
    return kind_of_list(*list->getElementType());
  return kind_of_type(type);
}

Record make_record(const torus_op_t *op, const c10::FunctionSchema &schema) {
  Record record;
  record.op = op;
  record.traits = torus_op_traits(op);
  record.name = schema.operator_name().name +
                (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const auto &arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    record.kinds.push_back(kind_of(arguments[i]));
    if (record.kinds.back() == Kind::Generator) record.generator = static_cast<int>(i);
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    // Statistics written on the side (batch norm, rrelu) do not make an operator in-place.
    if (!arguments[i].is_out() && schema.name().back() != '_') continue;
    record.form = arguments[i].is_out() ? Form::Out : Form::InPlace;
    record.written.push_back(static_cast<int>(i));
  }
  record.return_count = static_cast<int>(schema.returns().size());
  record.returns_list =
      record.return_count == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  return record;
}

// ---- stack -> request ----

// Per-thread scratch, reused so that a call allocates nothing in the steady state.
struct Scratch {
  Scratch() { prepare_thread(); } // one is made when a thread calls its first operator

  std::vector<torus_arg_t> args;
  std::vector<torus_view_t> views;
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  std::vector<torus_number_t> numbers;
  std::vector<at::Tensor> moved; // CPU index tensors brought to the device
  std::vector<std::string> strings;
  bool is_recording = false; // a call of this thread holds its device's lock
};

// True while it lives, as it was before afterwards.
class Flag {
public:
  explicit Flag(bool &flag) : flag_(flag), before_(flag) { flag = true; }
  Flag(const Flag &) = delete;
  Flag &operator=(const Flag &) = delete;
  ~Flag() { flag_ = before_; }

private:
  bool &flag_;
  bool before_;
};

class Arguments {
public:
  Arguments(const Record &record_in, at::ArrayRef<c10::IValue> stack_in, Scratch &scratch_in)
      : record(record_in), stack(stack_in), scratch(scratch_in) {}

  const Record &record;
  at::ArrayRef<c10::IValue> stack;
  Scratch &scratch;
  int device = -1;

  // Upper bounds first: pointers into the vectors must stay valid.
  void reserve() {
    size_t views = 0, ints = 0, doubles = 0;
    for (size_t i = 0; i < stack.size(); ++i) {
      const c10::IValue &v = stack[i];
      views += v.isTensor()       ? 1
               : v.isTensorList() ? v.toListRef().size()
               : v.isList()       ? v.toListRef().size()
                                  : 0;
      if (v.isList()) ints += v.toListRef().size();
      if (v.isList()) doubles += v.toListRef().size();
    }
    scratch.args.assign(stack.size(), torus_arg_t{});
    scratch.views.assign(views, torus_view_t{});
    scratch.ints.resize(ints);
    scratch.doubles.resize(doubles);
    scratch.numbers.resize(doubles);
    next_view_ = scratch.views.data();
    next_int_ = scratch.ints.data();
    next_double_ = scratch.doubles.data();
    next_number_ = scratch.numbers.data();
  }

  void find_device() {
    for (const c10::IValue &v : stack) {
      if (v.isTensor()) {
        use_device_of(v.toTensor());
      } else if (v.isList()) {
        for (const c10::IValue &e : v.toListRef()) {
          if (e.isTensor()) use_device_of(e.toTensor());
        }
      }
    }
    for (const c10::IValue &v : stack) { // factories name their device
      if (device < 0 && v.isDevice() && v.toDevice().type() == kTpu && v.toDevice().has_index())
        device = v.toDevice().index();
    }
    if (device < 0) device = current_device();
  }

  void convert() {
    for (size_t i = 0; i < stack.size(); ++i)
      convert_one(stack[i], record.kinds[i], scratch.args[i]);
  }

private:
  torus_view_t *next_view_ = nullptr;
  int64_t *next_int_ = nullptr;
  double *next_double_ = nullptr;
  torus_number_t *next_number_ = nullptr;

  void use_device_of(const at::Tensor &t) {
    if (!t.defined() || t.device().type() != kTpu) return;
    const int own = t.device().index();
    TORCH_CHECK(
        device < 0 || device == own,
        "Expected all tensors to be on the same device, but found at least two devices, tpu:",
        device, " and tpu:", own, "! (in ", record.name, ")");
    device = own;
  }

  void fill_view(const at::Tensor &t, torus_view_t &view) {
    if (t.device().type() == kTpu) {
      view = view_of(t);
      return;
    }
    TORCH_CHECK(
        t.dim() == 0 && t.is_cpu(),
        "Expected all tensors to be on the same device, but found at least two devices, tpu:",
        device, " and ", t.device(), "! (in ", record.name, ")");
    view.dtype = to_dtype(t.scalar_type());
    view.is_number = t.unsafeGetTensorImpl()->is_wrapped_number();
    view.number = number_of(t.item());
  }

  void convert_list(const c10::IValue &v, Kind kind, torus_arg_t &arg) {
    const auto list = v.toListRef();
    arg.tag = TORUS_ARG_TENSORS;
    arg.count = static_cast<int>(list.size());
    arg.as.views = next_view_;
    for (const c10::IValue &e : list) {
      torus_view_t &view = *next_view_++;
      if (!e.isTensor() || !e.toTensor().defined()) {
        view.rank = -1;
      } else if (kind == Kind::Indices && e.toTensor().is_cpu()) {
        scratch.moved.push_back(
            e.toTensor().to(at::Device(kTpu, static_cast<c10::DeviceIndex>(device))));
        view = view_of(scratch.moved.back());
      } else {
        fill_view(e.toTensor(), view);
      }
    }
  }

  void convert_ints(const c10::IValue &v, Kind kind, torus_arg_t &arg) {
    arg.tag = TORUS_ARG_INTS;
    if (!v.isList()) { // an int where a list is expected
      arg.count = 0;
      return;
    }
    const auto list = v.toListRef();
    arg.count = static_cast<int>(list.size());
    arg.as.ints = next_int_;
    for (const c10::IValue &e : list) *next_int_++ = kind == Kind::Bools ? e.toBool() : e.toInt();
  }

  void convert_doubles(const c10::IValue &v, torus_arg_t &arg) {
    const auto list = v.toListRef();
    arg.tag = TORUS_ARG_DOUBLES;
    arg.count = static_cast<int>(list.size());
    arg.as.doubles = next_double_;
    for (const c10::IValue &e : list) *next_double_++ = e.toScalar().toDouble();
  }

  void convert_numbers(const c10::IValue &v, torus_arg_t &arg) {
    const auto list = v.toListRef();
    arg.tag = TORUS_ARG_NUMBERS;
    arg.count = static_cast<int>(list.size());
    arg.as.numbers = next_number_;
    for (const c10::IValue &e : list) *next_number_++ = number_of(e.toScalar());
  }

  void convert_one(const c10::IValue &v, Kind kind, torus_arg_t &arg) {
    if (v.isNone()) return;
    switch (kind) {
    case Kind::Tensor: {
      if (!v.isTensor() || !v.toTensor().defined()) return;
      arg.tag = TORUS_ARG_TENSOR;
      arg.count = 1;
      arg.as.views = next_view_;
      fill_view(v.toTensor(), *next_view_++);
      return;
    }
    case Kind::TensorList:
    case Kind::Indices: convert_list(v, kind, arg); return;
    case Kind::Number:
      arg.tag = TORUS_ARG_NUMBER;
      arg.as.number = v.isInt() ? torus_number_t{torus_number_t::TORUS_NUMBER_INT, v.toInt(), 0, 0}
                                : number_of(v.toScalar());
      return;
    case Kind::Ints:
    case Kind::Bools: convert_ints(v, kind, arg); return;
    case Kind::Doubles: convert_doubles(v, arg); return;
    case Kind::Scalars: convert_numbers(v, arg); return;
    case Kind::String:
      arg.tag = TORUS_ARG_STRING;
      arg.as.string = v.toStringRef().c_str();
      return;
    case Kind::Dtype:
      arg.tag = TORUS_ARG_DTYPE;
      arg.as.dtype = to_dtype(v.toScalarType());
      return;
    default: return;
    }
  }
};

// ---- results ----

at::IntArrayRef sizes_of(const torus_result_t &r) { return {r.sizes, static_cast<size_t>(r.rank)}; }
at::IntArrayRef strides_of(const torus_result_t &r) {
  return {r.strides, static_cast<size_t>(r.rank)};
}

at::Tensor wrap_result(const torus_result_t &r, int device) {
  if (r.value == nullptr) return {};
  return tensor_from_value(r.value, device, r.dtype, sizes_of(r), strides_of(r));
}

void push_functional(const Record &record, torus_result_t *results, int count, int device,
                     torch::jit::Stack *stack) {
  if (record.returns_list) {
    std::vector<at::Tensor> list;
    list.reserve(count);
    for (int k = 0; k < count; ++k) list.push_back(wrap_result(results[k], device));
    stack->emplace_back(std::move(list));
    return;
  }
  for (int k = 0; k < record.return_count; ++k) {
    stack->emplace_back(k < count ? wrap_result(results[k], device) : at::Tensor());
  }
}

// Owns the values of a call until they are stored.
struct Values {
  torus_result_t *results;
  int count;
  ~Values() {
    for (int k = 0; k < count; ++k) torus_value_release(results[k].value);
  }
};

void store(const Record &record, const at::Tensor &target, const torus_result_t &r) {
  if (r.value == nullptr) return;
  const auto type = from_dtype(r.dtype);
  TORCH_CHECK(c10::canCast(type, target.scalar_type()), "result type ", type,
              " can't be cast to the desired output type ", target.scalar_type());
  if (record.form == Form::Out) {
    at::native::resize_output(target, sizes_of(r));
  } else {
    TORCH_CHECK(target.sizes() == sizes_of(r), "output with shape ", target.sizes(),
                " doesn't match the broadcast shape ", sizes_of(r));
  }
  const torus_view_t view = view_of(target);
  check(torus_view_assign(engine(), &view, r.value, r.rank, r.sizes, r.strides));
}

// Tensors written, in order, lists flattened.
std::vector<at::Tensor> targets_of(const Record &record, at::ArrayRef<c10::IValue> stack) {
  std::vector<at::Tensor> targets;
  for (const int i : record.written) {
    if (stack[i].isTensor()) {
      targets.push_back(stack[i].toTensor());
    } else if (stack[i].isList()) {
      for (const c10::IValue &e : stack[i].toListRef()) targets.push_back(e.toTensor());
    }
  }
  return targets;
}

// resize_output may record, so the lock is recursive in effect: sizes are fixed up before
// recording.
void store_all(const Record &record, const std::vector<at::Tensor> &targets,
               torus_result_t *results, int count) {
  Values values{results, count};
  for (int k = 0; k < count && k < static_cast<int>(targets.size()); ++k)
    store(record, targets[k], results[k]);
}

void push_written(const Record &record, at::ArrayRef<c10::IValue> arguments, size_t argument_count,
                  torch::jit::Stack *stack) {
  std::vector<c10::IValue> returned;
  for (int k = 0; k < record.return_count; ++k) returned.push_back(arguments[record.written[k]]);
  torch::jit::drop(*stack, argument_count);
  for (auto &v : returned) stack->push_back(std::move(v));
}

// ---- errors ----

constexpr size_t kMostStandInBytes = 1 << 24;

size_t storage_bytes(const c10::IValue &v) {
  if (v.isTensor()) return v.toTensor().defined() ? v.toTensor().storage().nbytes() : 0;
  size_t bytes = 0;
  if (v.isTensorList() || v.isList()) {
    for (const c10::IValue &e : v.toListRef()) bytes += storage_bytes(e);
  }
  return bytes;
}

// PyTorch words the error itself: the same call on stand-ins fails with its own text and type. The
// CPU tells more than the meta device, which costs no memory however large the tensors are.
[[noreturn]] void raise_as_pytorch(const c10::OperatorHandle &op,
                                   at::ArrayRef<c10::IValue> arguments, const Record &record,
                                   torus_status_t status) {
  const std::string own = torus_status_message(status);
  if (torus_status_code(status) == TORUS_STATUS_INVALID_ARGUMENT ||
      torus_status_code(status) == TORUS_STATUS_OUT_OF_RANGE) {
    size_t bytes = 0;
    for (const c10::IValue &v : arguments) bytes += storage_bytes(v);
    const bool is_small = bytes <= kMostStandInBytes && record.generator < 0;
    const at::Device device(is_small ? at::kCPU : at::kMeta);
    torch::jit::Stack stack;
    try {
      for (const c10::IValue &v : arguments) stack.push_back(stand_in(v, device));
      op.callBoxed(&stack);
    } catch (const c10::NotImplementedError &) {
      // The CPU lacks the type as well; without a meta kernel our own words follow.
      if (is_small) {
        torus_status_free(status);
        throw;
      }
    } catch (const c10::Error &) {
      torus_status_free(status);
      throw;
    }
  }
  check(torus_status_annotate(status, "%s", record.name.c_str()));
  TORCH_CHECK(false, own);
}

// ---- the kernel ----

struct RandomContext {
  const Record &record;
  at::ArrayRef<c10::IValue> stack;
  int device;
};

void reserve_random(void *context, int64_t count, uint64_t *out_seed, uint64_t *out_offset) {
  const auto &c = *static_cast<RandomContext *>(context);
  std::optional<at::Generator> generator;
  if (c.record.generator >= 0 && !c.stack[c.record.generator].isNone()) {
    generator = c.stack[c.record.generator].toGenerator();
  }
  resolve_generator(generator, c.device)
      ->reserve(static_cast<uint64_t>(count), out_seed, out_offset);
}

torus_precision_t matmul_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
  case at::Float32MatmulPrecision::HIGHEST: return TORUS_PRECISION_HIGHEST;
  case at::Float32MatmulPrecision::HIGH: return TORUS_PRECISION_HIGH;
  default: return TORUS_PRECISION_MEDIUM;
  }
}

class Kernel final : public c10::OperatorKernel {
public:
  explicit Kernel(Record record) : record_(std::move(record)) {}

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
    const size_t count = record_.kinds.size();
    const auto arguments = torch::jit::last(*stack, count);
    torus_status_t status = run(arguments, count, stack);
    if (status == TORUS_OK) return;
    if (torus_status_code(status) == TORUS_STATUS_UNIMPLEMENTED) {
      const std::string reason = torus_status_message(status);
      torus_status_free(status);
      cpu_fallback(op, stack, reason.c_str());
      return;
    }
    if (torus_status_code(status) == TORUS_STATUS_FAILED_PRECONDITION)
      note_missing_if_abstract(record_.name, "its results depend on values");
    raise_as_pytorch(op, arguments, record_, status);
  }

private:
  Record record_;

  // A captured graph sets the random numbers of each run by the default generator alone.
  void refuse_own_generator(at::ArrayRef<c10::IValue> arguments, int device) const {
    if (record_.generator < 0 || arguments[record_.generator].isNone()) return;
    TORCH_CHECK(
        !torus_capture_is_active(engine(), device) ||
            arguments[record_.generator].toGenerator() == default_generator(device),
        "a graph being captured can draw from the default generator of its device only (in ",
        record_.name, ")");
  }

  torus_status_t run(at::ArrayRef<c10::IValue> arguments, size_t count, torch::jit::Stack *stack) {
    static thread_local Scratch scratch;
    scratch.moved.clear();
    Arguments converted(record_, arguments, scratch);
    converted.find_device();
    torus_engine_t *const e = engine();
    std::vector<at::Tensor> targets;
    if (record_.form != Form::Functional) targets = targets_of(record_, arguments);
    converted.reserve();
    converted.convert();
    RandomContext random{record_, arguments, converted.device};
    torus_request_t request{};
    request.op = record_.op;
    request.traits = record_.traits;
    if (record_.traits.is_precise) request.precision = matmul_precision();
    request.device = converted.device;
    request.args = scratch.args.data();
    request.arg_count = static_cast<int>(count);
    request.is_inplace = record_.form != Form::Functional;
    request.default_dtype = to_dtype(c10::get_default_dtype_as_scalartype());
    request.reserve_random = reserve_random;
    request.random_context = &random;
    refuse_own_generator(arguments, converted.device);
    if (!scratch.is_recording) request.place = current_place();
    Flag is_recording(scratch.is_recording);
    Recording recording(converted.device);
    torus_result_t *results = nullptr;
    int result_count = 0;
    torus_status_t status = torus_engine_call(e, &request, &results, &result_count);
    if (status != TORUS_OK) return status;
    if (record_.form == Form::Functional) {
      const int device = converted.device;
      torch::jit::drop(*stack, count);
      push_functional(record_, results, result_count, device, stack);
    } else {
      store_all(record_, targets, results, result_count);
      push_written(record_, arguments, count, stack);
    }
    recording.commit();
    return TORUS_OK;
  }
};

// ---- registration ----

using Names = std::unordered_map<std::string, std::vector<c10::OperatorName>>;

Names all_overloads() {
  Names names;
  for (const c10::OperatorName &name : c10::Dispatcher::singleton().getAllOpNames()) {
    names[name.name].push_back(name);
  }
  return names;
}

// Same arguments, then the out tensors.
bool is_out_of(const c10::FunctionSchema &out, const c10::FunctionSchema &functional) {
  const auto &a = functional.arguments();
  const auto &b = out.arguments();
  if (b.size() <= a.size()) return false;
  for (size_t i = 0; i < b.size(); ++i) {
    if (b[i].is_out() != (i >= a.size())) return false;
    if (i < a.size() && *a[i].type() != *b[i].type()) return false;
  }
  return true;
}

// Same arguments, of which the first is written.
bool is_in_place_of(const c10::FunctionSchema &in_place, const c10::FunctionSchema &functional) {
  const auto &a = functional.arguments();
  const auto &b = in_place.arguments();
  if (b.size() != a.size()) return false;
  for (size_t i = 0; i < b.size(); ++i) {
    const auto *alias = b[i].alias_info();
    if ((alias && alias->isWrite()) != (i == 0)) return false;
    if (a[i].name() != b[i].name() || *a[i].type() != *b[i].type()) return false;
  }
  return true;
}

class Registrar {
public:
  explicit Registrar(torch::Library &library)
      : library_(library), overloads_(all_overloads()) {}

  void add(const torus_op_t *op) {
    const std::string name = torus_op_name(op);
    const size_t dot = name.find('.');
    const std::string base = "aten::" + name.substr(0, dot);
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto functional = find(base, overload);
    if (!functional) return;
    bind(op, *functional);
    if (base.back() == '_') return;
    if (const auto in_place = find(base + "_", overload)) bind(op, *in_place);
    // They may have other overload names: max.dim_max, topk.values, pow_.Tensor. The schema tells.
    bind_those(op, base, functional->schema(), is_out_of);
    bind_those(op, base + "_", functional->schema(), is_in_place_of);
  }

private:
  torch::Library &library_;
  Names overloads_;
  std::unordered_map<std::string, bool> bound_;

  static std::optional<c10::OperatorHandle> find(const std::string &base,
                                                 const std::string &overload) {
    return c10::Dispatcher::singleton().findSchema({base, overload});
  }

  void bind_those(const torus_op_t *op, const std::string &name,
                  const c10::FunctionSchema &functional,
                  bool (*is_form_of)(const c10::FunctionSchema &, const c10::FunctionSchema &)) {
    const auto names = overloads_.find(name);
    if (names == overloads_.end()) return;
    for (const auto &each : names->second) {
      const auto handle = find(each.name, each.overload_name);
      if (handle && is_form_of(handle->schema(), functional)) bind(op, *handle);
    }
  }

  void bind(const torus_op_t *op, const c10::OperatorHandle &handle) {
    Record record = make_record(op, handle.schema());
    const std::string name = record.name;
    if (!bound_.emplace(name, true).second) return;
    library_.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                    std::make_unique<Kernel>(std::move(record))));
  }
};

} // namespace

void register_operators() {
  static torch::Library *const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  Registrar registrar(*library);
  for (size_t i = 0; i < torus_op_count(); ++i) registrar.add(torus_op_at(i));
}

} // namespace torus
