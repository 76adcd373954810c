/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Steps that batch norm and its synchronised form share. Statistics are rank 1, one per channel
 * (dimension 1), in the accumulation type of the input. */
#ifndef TORUS_OPS_BATCH_NORM_H_
#define TORUS_OPS_BATCH_NORM_H_

#include "ops/axes.h"

/* All dimensions but the channels. Reports an input of rank below 2. */
torus_axes_t channel_axes(torus_call_t *call, int input_arg);
/* A rank-1 node, or HLO_NONE, along dimension 1 of |like|. */
hlo_t channel_expand(hlo_graph_t *g, hlo_t x, hlo_t like);
hlo_t channel_sum(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes);
/* Mean and biased variance of every channel. */
void channel_moments(hlo_graph_t *g, hlo_t x, const torus_axes_t *axes, hlo_t *out_mean,
                     hlo_t *out_variance);
/* 1 / sqrt(variance + epsilon) */
hlo_t channel_invstd(hlo_graph_t *g, hlo_t variance, double epsilon);
/* (x - mean) * invstd * weight + bias; weight and bias may be HLO_NONE. */
hlo_t channel_normalize(hlo_graph_t *g, hlo_t x, hlo_t mean, hlo_t invstd, hlo_t weight,
                        hlo_t bias);
/* Argument |arg| (a running statistic, may be None) moves towards |value| by |momentum|. */
void channel_update(torus_call_t *call, hlo_graph_t *g, int arg, hlo_t value, double momentum);
/* Variance with n - 1 in the denominator from one with n; |count| is n. */
hlo_t channel_unbiased(hlo_graph_t *g, hlo_t variance, int64_t count);

#endif  /* TORUS_OPS_BATCH_NORM_H_ */
