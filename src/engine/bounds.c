/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Which sizes change from call to call.
 *
 * A structure is a graph without its sizes. The first time it comes by, it is compiled for its
 * sizes alone. When it comes by with others, those that differ are dynamic from then on, and a
 * program is made in which they are run-time numbers under a bound. Dynamic sizes that have always
 * been equal form one class. A structure that cannot be bounded is compiled for each of its sizes,
 * as is one whose sizes have stopped changing. */
#include <string.h>

#include "engine/engine_internal.h"
#include "hlo/bound.h"
#include "hlo/shapes.h"

enum {
  MOST_CLASSES = 64,
  BUCKETS = 1024,
  /* Launches in a row with the same sizes after which they count as fixed. */
  SETTLED = 256,
  /* Inputs up to this many bytes are padded through the host to be held as the program likes. */
  MOST_PADDED_BYTES = 1 << 20,
};

typedef struct structure {
  struct structure *next; /* same bucket */
  hlo_shapes_t first;     /* key, and the sizes and soft numbers of the first instance */
  int64_t *last;          /* sizes of the instance before this one */
  int *classes;
  int class_count;
  bool *changes;                 /* per soft number */
  int repeats;                   /* instances in a row with the sizes |last| */
  char reason[HLO_REASON_BYTES]; /* why there is no program for all sizes; empty: there may be */
} structure_t;

struct torus_bounds {
  torus_engine_t *engine;
  pthread_mutex_t lock; /* against clear from another thread */
  structure_t *buckets[BUCKETS];
  hlo_graph_t *graph; /* the graph rebuilt; changes places with the job's */
};

static torus_status_t no_memory(void) {
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory for a program");
}

/* ---- life ---- */

torus_status_t torus_bounds_create(torus_engine_t *engine, torus_bounds_t **out_bounds) {
  *out_bounds = NULL;
  torus_bounds_t *bounds = torus_alloc(sizeof *bounds);
  if (bounds == NULL) return no_memory();
  torus_status_t status = hlo_graph_create(&bounds->graph);
  if (status != TORUS_OK) {
    torus_free(bounds);
    return status;
  }
  bounds->engine = engine;
  pthread_mutex_init(&bounds->lock, NULL);
  *out_bounds = bounds;
  return TORUS_OK;
}

static void free_structure(structure_t *s) {
  if (s == NULL) return;
  hlo_shapes_deinit(&s->first);
  torus_free(s->last);
  torus_free(s->classes);
  torus_free(s->changes);
  torus_free(s);
}

void torus_bounds_clear(torus_bounds_t *bounds) {
  pthread_mutex_lock(&bounds->lock);
  for (size_t i = 0; i < BUCKETS; ++i) {
    while (bounds->buckets[i] != NULL) {
      structure_t *s = bounds->buckets[i];
      bounds->buckets[i] = s->next;
      free_structure(s);
    }
  }
  pthread_mutex_unlock(&bounds->lock);
}

void torus_bounds_destroy(torus_bounds_t *bounds) {
  if (bounds == NULL) return;
  torus_bounds_clear(bounds);
  hlo_graph_destroy(bounds->graph);
  pthread_mutex_destroy(&bounds->lock);
  torus_free(bounds);
}

/* ---- structures ---- */

static structure_t *find(torus_bounds_t *bounds, const hlo_shapes_t *shapes) {
  structure_t *s = bounds->buckets[shapes->hash % BUCKETS];
  while (s != NULL && (s->first.hash != shapes->hash || s->first.key_bytes != shapes->key_bytes ||
                       memcmp(s->first.key, shapes->key, shapes->key_bytes) != 0)) {
    s = s->next;
  }
  return s;
}

static size_t size_bytes(const hlo_shapes_t *shapes) {
  return shapes->size_count * sizeof(int64_t);
}

/* Takes over |shapes|. */
static torus_status_t add(torus_bounds_t *bounds, hlo_shapes_t *shapes,
                          structure_t **out_structure) {
  structure_t *s = torus_alloc(sizeof *s);
  if (s == NULL) return no_memory();
  s->last = torus_alloc(size_bytes(shapes) + 1);
  s->classes = torus_alloc((shapes->size_count + 1) * sizeof *s->classes);
  s->changes = torus_alloc(shapes->soft_count + 1);
  if (s->last == NULL || s->classes == NULL || s->changes == NULL) {
    free_structure(s);
    return no_memory();
  }
  s->first = *shapes;
  *shapes = (hlo_shapes_t){0};
  memcpy(s->last, s->first.sizes, size_bytes(&s->first));
  structure_t **bucket = &bounds->buckets[s->first.hash % BUCKETS];
  s->next = *bucket;
  *bucket = s;
  *out_structure = s;
  return TORUS_OK;
}

/* ---- classes ---- */

/* What the members of a class have in common: their class before, or the size of old, and the size
 * now. */
typedef struct trait {
  int class;
  int64_t first, now;
} trait_t;

static int find_trait(trait_t *traits, int *count, trait_t wanted) {
  for (int k = 0; k < *count; ++k) {
    if (traits[k].class == wanted.class && traits[k].first == wanted.first &&
        traits[k].now == wanted.now) {
      return k + 1;
    }
  }
  if (*count == MOST_CLASSES) return 0;
  traits[(*count)++] = wanted;
  return *count;
}

static void refine(structure_t *s, const int64_t *sizes) {
  trait_t traits[MOST_CLASSES];
  int count = 0;
  for (size_t i = 0; i < s->first.size_count; ++i) {
    const int class = s->classes[i];
    if (class == 0 && sizes[i] == s->first.sizes[i]) continue;
    const trait_t own = {class, class == 0 ? s->first.sizes[i] : 0, sizes[i]};
    s->classes[i] = find_trait(traits, &count, own);
    if (s->classes[i] == 0) {
      strcpy(s->reason, "too many sizes change independently");
      return;
    }
  }
  s->class_count = count;
}

static void note_sizes(structure_t *s, const hlo_shapes_t *shapes) {
  if (memcmp(s->last, shapes->sizes, size_bytes(shapes)) == 0) {
    s->repeats += s->repeats < SETTLED;
    return;
  }
  s->repeats = 0;
  memcpy(s->last, shapes->sizes, size_bytes(shapes));
  if (s->reason[0] == 0) refine(s, shapes->sizes);
}

/* ---- rebuilding ---- */

typedef struct rebuilding {
  torus_job_t *job;
  torus_value_t **padded; /* by input number: what takes its place, without a buffer yet */
  bool may_pad;
  torus_status_t error;
} rebuilding_t;

static bool should_pad(const rebuilding_t *r, const torus_value_t *value, const int64_t *bounds) {
  if (!r->may_pad || atomic_load(&value->state) != TORUS_VALUE_READY) return false;
  return memcmp(value->dims, bounds, (size_t)value->rank * sizeof *bounds) != 0 &&
         torus_value_size_bytes(value) <= MOST_PADDED_BYTES;
}

static const int64_t *held_dims(void *context, int input, const int64_t *bounds) {
  rebuilding_t *r = context;
  torus_value_t *value = r->job->window.inputs[input], *padded;
  if (value->physical != NULL || !should_pad(r, value, bounds)) return value->physical;
  torus_status_t status = torus_value_create(value->engine, value->device, value->dtype,
                                             value->rank, value->dims, &padded);
  if (status == TORUS_OK) status = torus_value_set_physical(padded, bounds);
  if (status == TORUS_OK) {
    torus_value_release(r->padded[input]);
    r->padded[input] = padded;
    return padded->physical;
  }
  torus_value_release(padded);
  torus_status_free(r->error);
  r->error = status;
  return NULL;
}

/* Padded inputs take the places of exact ones. */
static torus_status_t install_padded(rebuilding_t *r) {
  for (size_t i = 0; i < r->job->window.input_count; ++i) {
    if (r->padded[i] == NULL) continue;
    torus_value_t **input = &r->job->window.inputs[i];
    TORUS_TRY(torus_value_fill_padded(r->padded[i], *input));
    atomic_fetch_add(&r->padded[i]->refs, TORUS_VALUE_QUEUED_ONCE);
    torus_value_release_queued(*input);
    *input = r->padded[i];
    r->padded[i] = NULL;
  }
  return TORUS_OK;
}

static torus_status_t bind(torus_bounds_t *bounds, rebuilding_t *r, const structure_t *s,
                           hlo_t *outputs, char *reason) {
  const hlo_bounding_t bounding = {.graph = r->job->window.graph,
                                   .outputs = r->job->outputs,
                                   .output_count = r->job->output_count,
                                   .classes = s != NULL ? s->classes : NULL,
                                   .class_count = s != NULL ? s->class_count : 0,
                                   .held = held_dims,
                                   .context = r};
  TORUS_TRY(hlo_bound(&bounding, bounds->graph, outputs, reason));
  if (reason[0] != 0) return TORUS_OK;
  TORUS_TRY(r->error);
  TORUS_TRY(install_padded(r));
  memcpy(r->job->outputs, outputs, r->job->output_count * sizeof *outputs);
  hlo_graph_swap(r->job->window.graph, bounds->graph);
  hlo_graph_adopt_marks(r->job->window.graph, bounds->graph);
  return TORUS_OK;
}

/* With |s| NULL inputs are cut to their sizes and nothing else changes. */
static torus_status_t rebuild(torus_bounds_t *bounds, torus_job_t *job, const structure_t *s,
                              char *reason) {
  const size_t inputs = job->window.input_count;
  void *block;
  TORUS_TRY(torus_try_alloc(
      (inputs + 1) * sizeof(torus_value_t *) + job->output_count * sizeof(hlo_t), &block));
  rebuilding_t r = {.job = job, .padded = block, .may_pad = s != NULL};
  torus_status_t status = bind(bounds, &r, s, (hlo_t *)(r.padded + inputs + 1), reason);
  for (size_t i = 0; i < inputs; ++i) torus_value_release(r.padded[i]);
  torus_free(block);
  return status;
}

/* ---- a job ---- */

static torus_status_t mark(torus_job_t *job, structure_t *s) {
  return hlo_mark_changes(job->window.graph, job->outputs, job->output_count, s->first.softs,
                          s->changes);
}

static torus_status_t find_or_add(torus_bounds_t *bounds, torus_job_t *job,
                                  structure_t **out_structure) {
  hlo_shapes_t shapes;
  TORUS_TRY(hlo_shapes_of(job->window.graph, job->outputs, job->output_count, &shapes));
  *out_structure = find(bounds, &shapes);
  torus_status_t status = TORUS_OK;
  if (*out_structure != NULL) {
    note_sizes(*out_structure, &shapes);
  } else {
    status = add(bounds, &shapes, out_structure);
  }
  hlo_shapes_deinit(&shapes);
  if (status == TORUS_OK) status = mark(job, *out_structure);
  return status;
}

/* Should the program have to be compiled, this is why. */
static void explain(const torus_bounds_t *bounds, const structure_t *s) {
  size_t i = 0;
  while (i < s->first.size_count && (s->classes[i] == 0 || s->first.sizes[i] == s->last[i])) i += 1;
  if (i == s->first.size_count) return;
  torus_explain_say(
      bounds->engine->explain, TORUS_TRIGGER_SIZE,
      "a size changes: %lld -> %lld; run-time argument from now on, one program up to %lld",
      (long long)s->first.sizes[i], (long long)s->last[i], (long long)hlo_bound_size(s->last[i]));
}

static torus_status_t apply(torus_bounds_t *bounds, torus_job_t *job, bool has_padded,
                            bool *out_rewritten) {
  structure_t *s;
  char reason[HLO_REASON_BYTES] = {0};
  TORUS_TRY(find_or_add(bounds, job, &s));
  if (s->class_count > 0 && s->reason[0] == 0 && s->repeats < SETTLED) {
    TORUS_TRY(rebuild(bounds, job, s, s->reason));
    job->is_bounded = *out_rewritten = s->reason[0] == 0;
    if (*out_rewritten) {
      explain(bounds, s);
      return TORUS_OK;
    }
  }
  if (!has_padded) return TORUS_OK;
  *out_rewritten = true;
  TORUS_TRY(rebuild(bounds, job, NULL, reason));
  return reason[0] == 0 ? TORUS_OK : torus_status_make(TORUS_STATUS_INTERNAL, "%s", reason);
}

torus_status_t torus_bounds_apply(torus_bounds_t *bounds, torus_job_t *job, bool has_padded,
                                  bool *out_rewritten) {
  *out_rewritten = false;
  pthread_mutex_lock(&bounds->lock);
  torus_status_t status = apply(bounds, job, has_padded, out_rewritten);
  pthread_mutex_unlock(&bounds->lock);
  return status;
}
