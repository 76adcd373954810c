// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// The inference kernels that nn.MultiheadAttention and nn.TransformerEncoderLayer call instead of
// their Python code, put together from operators that are lowered.
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace torus {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

enum MaskType : int64_t { kSourceMask = 0, kPaddingMask = 1 };

struct Attention {
  const Tensor &qkv_weight, &qkv_bias, &proj_weight, &proj_bias;
  int64_t width, heads;
};

// True where a key is hidden, to be broadcast over (B, H, L, S). Masks of numbers hide where they
// are not zero, as PyTorch's own kernels take them.
OptionalTensor hidden_keys(const OptionalTensor &mask, std::optional<int64_t> type) {
  if (!mask.has_value()) return std::nullopt;
  const Tensor hidden = mask->to(at::kBool);
  if (type != kPaddingMask) return hidden;
  return hidden.view({hidden.size(0), 1, 1, hidden.size(1)});
}

// (B, L, E) -> (B, H, L, E / H), part 0, 1 or 2 of the joint projection.
Tensor project(const Attention &a, const Tensor &x, int64_t part) {
  const Tensor weight = a.qkv_weight.narrow(0, part * a.width, a.width);
  const Tensor y = at::linear(x, weight, a.qkv_bias.narrow(0, part * a.width, a.width));
  return y.view({x.size(0), x.size(1), a.heads, a.width / a.heads}).transpose(1, 2);
}

Tensor join_heads(const Attention &a, const Tensor &y) {
  const Tensor joined = y.transpose(1, 2).reshape({y.size(0), y.size(2), a.width});
  return at::linear(joined, a.proj_weight, a.proj_bias);
}

Tensor attend(const Attention &a, const Tensor &query, const Tensor &key, const Tensor &value,
              const OptionalTensor &hidden) {
  OptionalTensor seen;
  if (hidden.has_value()) seen = at::logical_not(*hidden);
  return join_heads(a, at::scaled_dot_product_attention(project(a, query, 0), project(a, key, 1),
                                                        project(a, value, 2), seen));
}

std::tuple<Tensor, Tensor> attend_with_weights(const Attention &a, const Tensor &query,
                                               const Tensor &key, const Tensor &value,
                                               const OptionalTensor &hidden, bool average) {
  const double scale = 1 / std::sqrt(static_cast<double>(a.width / a.heads));
  Tensor scores = at::matmul(project(a, query, 0) * scale, project(a, key, 1).transpose(-2, -1));
  if (hidden.has_value()) {
    scores = scores.masked_fill(*hidden, -std::numeric_limits<double>::infinity());
  }
  const Tensor weights = at::softmax(scores, -1);
  const Tensor output = join_heads(a, at::matmul(weights, project(a, value, 2)));
  return {output, average ? weights.mean(1) : weights};
}

std::tuple<Tensor, Tensor> multi_head_attention(const Tensor &query, const Tensor &key,
                                                const Tensor &value, int64_t width, int64_t heads,
                                                const Tensor &qkv_weight, const Tensor &qkv_bias,
                                                const Tensor &proj_weight, const Tensor &proj_bias,
                                                const OptionalTensor &mask, bool need_weights,
                                                bool average, std::optional<int64_t> mask_type) {
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(width % heads == 0, "embed_dim ", width, " is not divisible by num_heads ", heads);
  const Attention a{qkv_weight, qkv_bias, proj_weight, proj_bias, width, heads};
  const OptionalTensor hidden = hidden_keys(mask, mask_type);
  if (need_weights) return attend_with_weights(a, query, key, value, hidden, average);
  return {attend(a, query, key, value, hidden), Tensor()};
}

Tensor encoder_layer(const Tensor &source, int64_t width, int64_t heads, const Tensor &qkv_weight,
                     const Tensor &qkv_bias, const Tensor &proj_weight, const Tensor &proj_bias,
                     bool use_gelu, bool norm_first, double eps, const Tensor &norm_weight_1,
                     const Tensor &norm_bias_1, const Tensor &norm_weight_2,
                     const Tensor &norm_bias_2, const Tensor &ffn_weight_1,
                     const Tensor &ffn_bias_1, const Tensor &ffn_weight_2, const Tensor &ffn_bias_2,
                     const OptionalTensor &mask, std::optional<int64_t> mask_type) {
  const Attention a{qkv_weight, qkv_bias, proj_weight, proj_bias, width, heads};
  const OptionalTensor hidden = hidden_keys(mask, mask_type);
  const auto norm_1 = [&](const Tensor &x) {
    return at::layer_norm(x, {width}, norm_weight_1, norm_bias_1, eps);
  };
  const auto norm_2 = [&](const Tensor &x) {
    return at::layer_norm(x, {width}, norm_weight_2, norm_bias_2, eps);
  };
  const auto feed_forward = [&](const Tensor &x) {
    const Tensor y = at::linear(x, ffn_weight_1, ffn_bias_1);
    return at::linear(use_gelu ? at::gelu(y) : at::relu(y), ffn_weight_2, ffn_bias_2);
  };
  if (norm_first) {
    const Tensor y = norm_1(source), x = source + attend(a, y, y, y, hidden);
    return x + feed_forward(norm_2(x));
  }
  const Tensor x = norm_1(source + attend(a, source, source, source, hidden));
  return norm_2(x + feed_forward(x));
}

// nn.TransformerEncoder asks this before it packs padded batches into nested tensors, which the
// device has not: "no" keeps them padded.
bool mask_is_left_aligned(const Tensor & /*values*/, const Tensor & /*mask*/) { return false; }

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_native_multi_head_attention", multi_head_attention);
  library.impl("_transformer_encoder_layer_fwd", encoder_layer);
  library.impl("_nested_tensor_from_mask_left_aligned", mask_is_left_aligned);
}

} // namespace torus
