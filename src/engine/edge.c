/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* The window's edge. */
#include "engine/engine_internal.h"

/* Where a fused window ends is decided by the content of the stream alone, so that the same
 * operators give the same windows whenever they come by:
 *
 *  - where the last operators are those that stood before the window began: a loop has come round
 *    once (or several times, when one turn is cheap), and from its second turn on every window is
 *    the same program;
 *  - in front of a product or convolution when a hash of the last operators says so: equal layers
 *    are cut alike wherever they fall. The longer the window, the more hashes will do;
 *  - anywhere, in the same manner, in long windows without products.
 *
 * Content-defined chunking: Muthitacharoen, Chen, Mazieres, "A low-bandwidth network file system",
 * SOSP 2001. */
enum {
  LEAST_IN_LOOP = 16, /* operators of a window that ends where its loop comes round ... */
  LEAST_HEAVY = 2,    /* ... with so many products; cheap loops go on to LEAST_CHEAP ... */
  LEAST_CHEAP = 256,
  SHORT_LOOP = 12, /* ... and turns of fewer operators than this to LEAST_SHORT */
  LEAST_SHORT = 160,
  LEAST_BY_HASH = 24,
  MOST_CHEAP = 1024,
  ROLLING_SHIFT = 5, /* the rolling hash forgets an operator after 64 / 5 others */
};

/* One hash in |mask| + 1 passes; the mask halves each time |count| doubles past |least|. */
static bool passes(uint64_t hash, size_t count, size_t least, uint64_t mask) {
  if (count < least) return false;
  for (size_t limit = least * 2; count >= limit && mask > 0; limit *= 2) mask >>= 1;
  return (hash >> 32 & mask) == 0;
}

/* Operators after which a window may end where its loop comes round. */
static size_t least_in_loop(const torus_window_t *window) {
  if (window->heavy_count < LEAST_HEAVY) return LEAST_CHEAP;
  return window->turn < SHORT_LOOP ? LEAST_SHORT : LEAST_IN_LOOP;
}

static bool is_due(torus_window_t *window, bool heavy) {
  const size_t count = window->op_count;
  if (window->rolling == window->start && count > 0) {
    if (window->turn == 0) window->turn = count;
    if (count >= least_in_loop(window)) return true;
  }
  const bool is_in_short_loop = window->turn > 0 && window->turn < SHORT_LOOP;
  const bool may_hash = heavy && !(is_in_short_loop && count < LEAST_SHORT);
  if (may_hash && passes(window->rolling, count, LEAST_BY_HASH, 7)) return true;
  return count >= MOST_CHEAP || passes(window->rolling, count * 4, MOST_CHEAP * 2, 15);
}

torus_status_t torus_window_expect(torus_engine_t *engine, int device,
                                   const torus_stretch_t *stretch) {
  torus_device_t *d = &engine->devices[device];
  const bool may_cut = d->capture == NULL && d->hold_depth == 0;
  if (may_cut && is_due(&d->window, stretch->heavy_count > 0)) {
    TORUS_TRY(torus_window_close(engine, device));
  }
  torus_window_t *window = &d->window;
  window->rolling = (window->rolling << ROLLING_SHIFT) ^ stretch->hash;
  window->op_count += stretch->op_count;
  window->heavy_count += stretch->heavy_count;
  return TORUS_OK;
}
