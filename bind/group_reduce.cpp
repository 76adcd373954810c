// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "group_reduce.h"

#include <ATen/ATen.h>

#include "runtime.h"

namespace torus {
namespace {

using Op = c10d::ReduceOp;

// Narrow floats are summed in float32 and rounded once.
c10::ScalarType wire_type(c10::ScalarType type) {
  if (c10::isComplexType(type)) return c10::toRealValueType(type);
  if (c10::isFloatingType(type)) return type == at::kDouble ? at::kDouble : at::kFloat;
  switch (type) {
  case at::kBool:
  case at::kByte: return at::kByte;
  case at::kChar:
  case at::kInt: return type;
  default: return at::kLong;
  }
}

// Truth values as zero and one: a sum is "any", a product is "all".
Op::RedOpType bool_op(Op::RedOpType op) {
  switch (op) {
  case Op::SUM:
  case Op::MAX:
  case Op::BOR: return Op::MAX;
  case Op::PRODUCT:
  case Op::MIN:
  case Op::BAND: return Op::MIN;
  case Op::BXOR: return Op::BXOR;
  default:
    TORCH_CHECK_TYPE(false, "bool tensors can be summed, multiplied or combined bit by bit across "
                            "ranks, not averaged or scaled");
  }
}

Op::RedOpType host_op(Op::RedOpType op, c10::ScalarType type) {
  const bool is_bitwise = op == Op::BAND || op == Op::BOR || op == Op::BXOR;
  const bool is_sum = op == Op::SUM || op == Op::AVG || op == Op::PREMUL_SUM;
  TORCH_CHECK_TYPE(!is_bitwise || c10::isIntegralType(type, true),
                   "a bitwise reduction needs integers, got ", type);
  TORCH_CHECK_TYPE(is_sum || !c10::isComplexType(type),
                   "complex tensors can only be summed or averaged across ranks");
  if (type == at::kBool) return bool_op(op);
  return is_sum ? Op::SUM : op;
}

std::optional<double> factor_of(const Op &op) {
  if (op.op_ != Op::PREMUL_SUM) return std::nullopt;
  const auto *extra = dynamic_cast<const c10d::PreMulSumSupplement *>(op.supplement_.get());
  TORCH_CHECK(extra != nullptr, "the operation PREMUL_SUM needs a factor");
  return extra->tensor_factor.defined() ? extra->tensor_factor.item<double>()
                                        : extra->double_factor;
}

} // namespace

Reduction::Reduction(const Op &op, c10::ScalarType type, int size)
    : host_op_(torus::host_op(op.op_, type)), type_(type), wire_(wire_type(type)),
      is_average_(op.op_ == Op::AVG), size_(size), factor_(factor_of(op)) {}

at::Tensor Reduction::encode(at::Tensor host) const {
  if (host.is_complex()) host = at::view_as_real(host);
  at::Tensor wire = host.to(wire_);
  if (factor_) wire.mul_(*factor_);
  return wire;
}

at::Tensor Reduction::decode(at::Tensor wire) const {
  if (is_average_ && c10::isIntegralType(wire_, false)) wire.div_(size_, "trunc");
  if (is_average_ && c10::isFloatingType(wire_)) wire.div_(size_);
  if (c10::isComplexType(type_)) return at::view_as_complex(wire);
  return wire.to(type_);
}

} // namespace torus
