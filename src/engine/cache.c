/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs by structure. An entry holds the variants compiled for one structure: each has some soft
 * numbers promoted to run-time arguments and the others built in. A look-up that finds the structure
 * with another number compiles one more variant in which every number seen to differ is promoted. */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "engine/engine_internal.h"

typedef struct variant {
  struct variant *next;
  uint64_t last_use;      /* number of the look-up that found it */
  bool *promoted;         /* one flag per soft number */
  int64_t *softs;         /* the built-in values; those of promoted numbers are unused */
  torus_executable_t *executable;
} variant_t;

typedef struct entry {
  struct entry *next;     /* same bucket */
  uint64_t hash;
  char *key;
  size_t key_bytes;
  size_t soft_count;
  variant_t *variants;    /* newest first */
} entry_t;

struct torus_program_cache {
  torus_engine_t *engine;
  pthread_mutex_t lock;   /* against clear from another thread */
  entry_t **buckets;
  size_t bucket_count;    /* power of two */
  size_t entry_count;
  size_t variant_count;
  uint64_t uses;          /* look-ups that found something, so far */
  torus_room_t room;
  torus_disk_cache_t *disk;  /* NULL: memory only */
  uint32_t *words;
  size_t word_capacity;
};

static torus_status_t no_memory(void) {
  return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory for a program");
}

static const char own_file_hash_anchor = 0; /* an address inside this library */

/* Hash of the file this code was loaded from: another build may print other programs for one key. */
static uint64_t own_file_hash(void) {
  Dl_info info;
  if (dladdr(&own_file_hash_anchor, &info) == 0 || info.dli_fname == NULL) return 0;
  const int file = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  uint64_t hash = 0;
  char *bytes = torus_alloc(1 << 16);
  for (ssize_t n; bytes != NULL && (n = read(file, bytes, 1 << 16)) > 0;) {
    hash = torus_hash_bytes(bytes, (size_t)n, hash);
  }
  torus_free(bytes);
  close(file);
  return hash;
}

/* Options that plugins read from the environment change what they compile. */
static void append_flags(torus_strbuf_t *text) {
  static const char *const variables[] = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"};
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    const char *value = getenv(variables[i]);
    torus_strbuf_printf(text, "%s\n", value != NULL ? value : "");
  }
}

static char *make_identity(torus_engine_t *engine) {
  torus_strbuf_t text = {0};
  torus_strbuf_printf(&text, "torus %" PRIx64 "\n%s\n%s\n", own_file_hash(),
                      torus_client_platform(engine->client),
                      torus_client_platform_version(engine->client));
  int major, minor;
  torus_client_api_version(engine->client, &major, &minor);
  torus_strbuf_printf(&text, "%d.%d %s\n%s\n", major, minor,
                      torus_client_device_kind(engine->client, 0),
                      torus_executable_options_fingerprint(engine->client, TORUS_EFFORT_DEFAULT));
  append_flags(&text);
  return torus_strbuf_take(&text);
}

torus_status_t torus_program_cache_create(torus_engine_t *engine,
                                          const torus_engine_options_t *options,
                                          torus_program_cache_t **out_cache) {
  *out_cache = NULL;
  torus_program_cache_t *cache = torus_alloc(sizeof *cache);
  if (cache == NULL) return no_memory();
  cache->engine = engine;
  pthread_mutex_init(&cache->lock, NULL);
  torus_room_init(&cache->room, (size_t)options->program_limit);
  cache->bucket_count = 1024;
  cache->buckets = torus_alloc(cache->bucket_count * sizeof *cache->buckets);
  char *identity = make_identity(engine);
  if (cache->buckets == NULL || identity == NULL) {
    torus_free(identity);
    torus_program_cache_destroy(cache);
    return no_memory();
  }
  if (options->cache_folder != NULL) {
    /* A cache that cannot be used costs time, never an answer. */
    torus_status_ignore(torus_disk_cache_create(options->cache_folder, options->cache_limit_bytes,
                                                identity, &cache->disk));
  }
  torus_free(identity);
  *out_cache = cache;
  return TORUS_OK;
}

static void free_variant(variant_t *v) {
  if (v == NULL) return;
  torus_executable_release(v->executable);
  torus_free(v->promoted);
  torus_free(v->softs);
  torus_free(v);
}

static void free_entry(entry_t *e) {
  while (e->variants != NULL) {
    variant_t *next = e->variants->next;
    free_variant(e->variants);
    e->variants = next;
  }
  torus_free(e->key);
  torus_free(e);
}

void torus_program_cache_clear(torus_program_cache_t *cache) {
  pthread_mutex_lock(&cache->lock);
  for (size_t i = 0; cache->buckets != NULL && i < cache->bucket_count; ++i) {
    while (cache->buckets[i] != NULL) {
      entry_t *next = cache->buckets[i]->next;
      free_entry(cache->buckets[i]);
      cache->buckets[i] = next;
    }
  }
  cache->entry_count = 0;
  cache->variant_count = 0;
  torus_room_look_again(&cache->room);
  pthread_mutex_unlock(&cache->lock);
}

void torus_program_cache_destroy(torus_program_cache_t *cache) {
  if (cache == NULL) return;
  torus_program_cache_clear(cache);
  torus_disk_cache_destroy(cache->disk);
  pthread_mutex_destroy(&cache->lock);
  torus_free(cache->buckets);
  torus_free(cache->words);
  torus_free(cache);
}

/* ---- entries ---- */

static entry_t *find_entry(torus_program_cache_t *cache, uint64_t hash, const char *key,
                           size_t key_bytes) {
  for (entry_t *e = cache->buckets[hash & (cache->bucket_count - 1)]; e != NULL; e = e->next) {
    if (e->hash == hash && e->key_bytes == key_bytes && memcmp(e->key, key, key_bytes) == 0) return e;
  }
  return NULL;
}

/* Doubles the table; staying small is a slowdown, not an error. */
static void rehash(torus_program_cache_t *cache) {
  const size_t wanted = cache->bucket_count * 2;
  entry_t **buckets = torus_alloc(wanted * sizeof *buckets);
  if (buckets == NULL) return;
  for (size_t i = 0; i < cache->bucket_count; ++i) {
    for (entry_t *e = cache->buckets[i], *next; e != NULL; e = next) {
      next = e->next;
      e->next = buckets[e->hash & (wanted - 1)];
      buckets[e->hash & (wanted - 1)] = e;
    }
  }
  torus_free(cache->buckets);
  cache->buckets = buckets;
  cache->bucket_count = wanted;
}

static entry_t *add_entry(torus_program_cache_t *cache, uint64_t hash, const char *key,
                          size_t key_bytes, size_t soft_count) {
  if (cache->entry_count >= cache->bucket_count) rehash(cache);
  entry_t *e = torus_alloc(sizeof *e);
  char *copy = torus_alloc(key_bytes);
  if (e == NULL || copy == NULL) {
    torus_free(e);
    torus_free(copy);
    return NULL;
  }
  memcpy(copy, key, key_bytes);
  *e = (entry_t){.hash = hash, .key = copy, .key_bytes = key_bytes, .soft_count = soft_count};
  entry_t **bucket = &cache->buckets[hash & (cache->bucket_count - 1)];
  e->next = *bucket;
  *bucket = e;
  cache->entry_count += 1;
  return e;
}

/* ---- variants ---- */

static bool variant_fits(const variant_t *v, const hlo_encoding_t *encoding) {
  for (size_t i = 0; i < encoding->soft_count; ++i) {
    if (!v->promoted[i] && v->softs[i] != encoding->softs[i]) return false;
  }
  return true;
}

/* Numbers to promote in the next variant: volatile ones, those promoted before, those that differ
 * from a variant in which they are built in. */
static void choose_promoted(const entry_t *e, const hlo_encoding_t *encoding, bool *promoted) {
  for (size_t i = 0; i < encoding->soft_count; ++i) {
    promoted[i] = encoding->soft_volatile[i];
    for (const variant_t *v = e->variants; v != NULL && !promoted[i]; v = v->next) {
      promoted[i] = v->promoted[i] || v->softs[i] != encoding->softs[i];
    }
  }
}

static variant_t *new_variant(const entry_t *e, const hlo_encoding_t *encoding) {
  variant_t *v = torus_alloc(sizeof *v);
  if (v == NULL) return NULL;
  v->promoted = torus_alloc((encoding->soft_count + 1) * sizeof(bool));
  v->softs = torus_alloc((encoding->soft_count + 1) * sizeof(int64_t));
  if (v->promoted == NULL || v->softs == NULL) {
    free_variant(v);
    return NULL;
  }
  if (encoding->soft_count > 0) {
    memcpy(v->softs, encoding->softs, encoding->soft_count * sizeof(int64_t));
  }
  choose_promoted(e, encoding, v->promoted);
  return v;
}

/* ---- compiling ---- */

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Structure, donation, promoted numbers and built-in values: everything that the text depends on. */
static bool disk_key(const entry_t *e, const variant_t *v, torus_strbuf_t *key) {
  torus_strbuf_append_bytes(key, e->key, e->key_bytes);
  for (size_t i = 0; i < e->soft_count; ++i) {
    const int64_t value = v->promoted[i] ? 0 : v->softs[i];
    torus_strbuf_append_bytes(key, &v->promoted[i], 1);
    torus_strbuf_append_bytes(key, &value, sizeof value);
  }
  return !key->failed;
}

static void count(torus_engine_t *engine, int64_t *figure) {
  pthread_mutex_lock(&engine->lock);
  *figure += 1;
  pthread_mutex_unlock(&engine->lock);
}

static bool load_from_disk(torus_program_cache_t *cache, const torus_job_t *job,
                           const torus_strbuf_t *key, variant_t *v) {
  char *bytes;
  size_t size;
  torus_disk_cache_read(cache->disk, key->data, key->size, &bytes, &size);
  if (size == 0) return false;
  torus_status_t status =
      job->spread != NULL
          ? torus_spread_load(cache->engine, job, bytes, size, &v->executable)
          : torus_executable_load(cache->engine->client, bytes, size, &v->executable);
  torus_free(bytes);
  if (status == TORUS_OK) count(cache->engine, &cache->engine->metrics.disk_hits);
  const bool is_loaded = status == TORUS_OK;
  torus_status_ignore(status); /* a foreign or damaged entry is compiled again */
  return is_loaded;
}

static void save_to_disk(torus_program_cache_t *cache, const torus_strbuf_t *key,
                         const variant_t *v) {
  char *bytes = NULL;
  size_t size = 0;
  torus_status_t status = torus_executable_serialize(v->executable, &bytes, &size);
  if (status == TORUS_OK) {
    torus_disk_cache_write(cache->disk, key->data, key->size, bytes, size);
  }
  torus_status_ignore(status);
  torus_free(bytes);
}

static void remember_text(torus_engine_t *engine, const torus_strbuf_t *text, double seconds) {
  char *copy = torus_strdup(text->data);
  pthread_mutex_lock(&engine->lock);
  torus_free(engine->last_program);
  engine->last_program = copy;
  engine->metrics.compilations += 1;
  engine->metrics.compile_seconds += seconds;
  pthread_mutex_unlock(&engine->lock);
}

static void remember_executable(torus_engine_t *engine, torus_executable_t *executable) {
  pthread_mutex_lock(&engine->lock);
  torus_executable_t *old = engine->last_executable;
  engine->last_executable = torus_executable_retain(executable);
  pthread_mutex_unlock(&engine->lock);
  torus_executable_release(old);
}

static torus_status_t compile_alone(torus_engine_t *engine, const torus_job_t *job,
                                    const bool *promoted, const int *aliases, torus_strbuf_t *text,
                                    torus_executable_t **out_executable) {
  TORUS_TRY(hlo_print(job->window.graph, job->outputs, job->output_count, promoted, aliases, text));
  return torus_executable_compile(engine->client, job->device, text->data, text->size,
                                  TORUS_EFFORT_DEFAULT, out_executable);
}

static torus_status_t compile(torus_program_cache_t *cache, torus_job_t *job, const int *aliases,
                              variant_t *v, size_t *out_text_bytes) {
  if (atomic_load(&cache->engine->cache_only)) {
    return torus_status_make(TORUS_STATUS_NOT_FOUND,
                             "this program is not cached and compiling is switched off "
                             "(cache-only mode); run once without it");
  }
  torus_strbuf_t text = {0};
  const double begin = seconds_now();
  torus_status_t status =
      job->spread != NULL
          ? torus_spread_compile(cache->engine, job, v->promoted, aliases, &text, &v->executable)
          : compile_alone(cache->engine, job, v->promoted, aliases, &text, &v->executable);
  if (status == TORUS_OK) remember_text(cache->engine, &text, seconds_now() - begin);
  *out_text_bytes = text.size;
  torus_strbuf_deinit(&text);
  return status;
}

static void explain(torus_program_cache_t *cache, const torus_job_t *job, const entry_t *e,
                    torus_new_program_t *program) {
  program->graph = job->window.graph;
  program->outputs = job->outputs;
  program->output_count = job->output_count;
  program->known_promoted = e->variants != NULL ? e->variants->promoted : NULL;
  program->known_softs = e->variants != NULL ? e->variants->softs : NULL;
  program->mode = job->window.mode;
  program->device = job->device;
  torus_explain_add(cache->engine->explain, program);
}

static torus_status_t make_program(torus_program_cache_t *cache, torus_job_t *job, const entry_t *e,
                                   const hlo_encoding_t *encoding, const int *aliases,
                                   variant_t *v) {
  torus_new_program_t program = {.encoding = encoding, .aliases = aliases};
  const double begin = seconds_now();
  torus_strbuf_t key = {0};
  const bool has_disk = cache->disk != NULL && disk_key(e, v, &key);
  torus_status_t status = TORUS_OK;
  program.from_disk = has_disk && load_from_disk(cache, job, &key, v);
  if (!program.from_disk) status = compile(cache, job, aliases, v, &program.text_bytes);
  program.seconds = seconds_now() - begin;
  program.status = status;
  if (status == TORUS_OK) remember_executable(cache->engine, v->executable);
  if (status == TORUS_OK && has_disk && !program.from_disk) save_to_disk(cache, &key, v);
  torus_strbuf_deinit(&key);
  explain(cache, job, e, &program);
  return status;
}

/* ---- donation ---- */

static bool same_type(const hlo_graph_t *g, hlo_t node, const torus_value_t *value) {
  if (hlo_dtype(g, node) != value->dtype || hlo_rank(g, node) != value->rank) return false;
  const int64_t *dims = hlo_dims(g, node), *held = torus_value_held_dims(value);
  for (int i = 0; i < value->rank; ++i) {
    if (dims[i] != held[i]) return false;
  }
  return true;
}

/* Gives each input that nobody else can see to the first free result of its type. */
static void choose_aliases(const torus_job_t *job, const hlo_encoding_t *encoding, int *aliases,
                           bool *taken) {
  const size_t results = job->window.value_count;
  size_t first_free = 0;
  if (job->aliases != NULL) {
    for (size_t p = 0; p < encoding->parameter_count; ++p) {
      aliases[p] = job->aliases[encoding->parameters[p]];
    }
    return;
  }
  for (size_t p = 0; p < encoding->parameter_count; ++p) {
    aliases[p] = -1;
    if (!job->donatable[encoding->parameters[p]]) continue;
    const torus_value_t *input = job->window.inputs[encoding->parameters[p]];
    while (first_free < results && taken[first_free]) first_free += 1;
    for (size_t k = first_free; k < results; ++k) {
      if (taken[k] || !same_type(job->window.graph, job->outputs[k], input)) continue;
      aliases[p] = (int)k;
      taken[k] = true;
      break;
    }
  }
}

static torus_status_t find_aliases(const torus_job_t *job, const hlo_encoding_t *encoding,
                                   int **out_aliases) {
  *out_aliases = torus_alloc((encoding->parameter_count + 1) * sizeof(int));
  bool *taken = torus_alloc(job->output_count + 1);
  if (*out_aliases != NULL && taken != NULL) choose_aliases(job, encoding, *out_aliases, taken);
  const bool is_ok = *out_aliases != NULL && taken != NULL;
  torus_free(taken);
  return is_ok ? TORUS_OK : no_memory();
}

/* ---- eviction ---- */

static int by_number(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The use since when half of the programs were used last; 0, before all, without memory. */
static uint64_t middle_use(const torus_program_cache_t *cache) {
  uint64_t *uses = torus_alloc((cache->variant_count + 1) * sizeof *uses);
  size_t n = 0;
  if (uses == NULL) return 0;
  for (size_t i = 0; i < cache->bucket_count; ++i) {
    for (const entry_t *e = cache->buckets[i]; e != NULL; e = e->next) {
      for (const variant_t *v = e->variants; v != NULL; v = v->next) uses[n++] = v->last_use;
    }
  }
  qsort(uses, n, sizeof *uses, by_number);
  const uint64_t middle = n > 0 ? uses[n / 2] : 0;
  torus_free(uses);
  return middle;
}

static void evict_variants(torus_program_cache_t *cache, entry_t *e, uint64_t since) {
  for (variant_t **link = &e->variants; *link != NULL;) {
    variant_t *v = *link;
    if (v->last_use >= since) {
      link = &v->next;
      continue;
    }
    *link = v->next;
    free_variant(v);
    cache->variant_count -= 1;
    count(cache->engine, &cache->engine->metrics.evictions);
  }
}

/* Unloads the programs last used before |since|; |kept| stays, be it empty. They may be on disk, and
 * are made again if not. */
static void evict(torus_program_cache_t *cache, uint64_t since, const entry_t *kept) {
  for (size_t i = 0; i < cache->bucket_count; ++i) {
    for (entry_t **link = &cache->buckets[i]; *link != NULL;) {
      entry_t *e = *link;
      evict_variants(cache, e, since);
      if (e->variants != NULL || e == kept) {
        link = &e->next;
        continue;
      }
      *link = e->next;
      free_entry(e);
      cache->entry_count -= 1;
    }
  }
  torus_room_look_again(&cache->room);
}

/* For one more program, of |kept| if that is there already. */
static torus_status_t make_room(torus_program_cache_t *cache, const entry_t *kept) {
  if (!torus_room_is_scarce(&cache->room, cache->variant_count)) return TORUS_OK;
  evict(cache, middle_use(cache), kept);
  if (!torus_room_is_scarce(&cache->room, cache->variant_count)) return TORUS_OK;
  torus_status_t status = torus_room_check(&cache->room);
  if (status != TORUS_OK) torus_room_look_again(&cache->room);
  return status;
}

/* ---- look-up ---- */

static torus_status_t pack(torus_program_cache_t *cache, const hlo_encoding_t *encoding,
                           const variant_t *v, torus_launch_t *out_launch) {
  const size_t words = hlo_soft_words(encoding, v->promoted);
  if (words > cache->word_capacity) {
    uint32_t *bigger = torus_realloc(cache->words, words * sizeof *bigger);
    if (bigger == NULL) return no_memory();
    cache->words = bigger;
    cache->word_capacity = words;
  }
  if (words > 0) hlo_pack_softs(encoding, v->promoted, cache->words);
  out_launch->executable = torus_executable_retain(v->executable);
  out_launch->soft_words = cache->words;
  out_launch->soft_word_count = words;
  return TORUS_OK;
}

/* What a look-up may have to make. */
typedef enum { MAKE_NOTHING, MAKE_VARIANTS, MAKE_ENTRIES } making_t;

static variant_t *find_variant(torus_program_cache_t *cache, const entry_t *e,
                               const hlo_encoding_t *encoding) {
  for (variant_t *v = e->variants; v != NULL; v = v->next) {
    if (!variant_fits(v, encoding)) continue;
    v->last_use = ++cache->uses;
    count(cache->engine, &cache->engine->metrics.cache_hits);
    return v;
  }
  return NULL;
}

static torus_status_t add_variant(torus_program_cache_t *cache, torus_job_t *job, entry_t *e,
                                  const hlo_encoding_t *encoding, const int *aliases,
                                  variant_t **out_variant) {
  variant_t *v = new_variant(e, encoding);
  if (v == NULL) return no_memory();
  torus_status_t status = make_program(cache, job, e, encoding, aliases, v);
  if (status != TORUS_OK) {
    free_variant(v);
    return status;
  }
  v->next = e->variants;
  v->last_use = ++cache->uses;
  e->variants = v;
  cache->variant_count += 1;
  *out_variant = v;
  return TORUS_OK;
}

static torus_status_t get_keyed(torus_program_cache_t *cache, torus_job_t *job,
                                const hlo_encoding_t *encoding, const torus_strbuf_t *key,
                                const int *aliases, making_t making, torus_launch_t *out_launch) {
  if (key->failed) return no_memory();
  const uint64_t hash = torus_hash_bytes(key->data, key->size, 0);
  entry_t *e = find_entry(cache, hash, key->data, key->size);
  if (making != MAKE_ENTRIES && (e == NULL || e->variants == NULL)) return TORUS_OK;
  variant_t *v = e != NULL ? find_variant(cache, e, encoding) : NULL;
  if (v == NULL && making == MAKE_NOTHING) return TORUS_OK;
  if (v == NULL) TORUS_TRY(make_room(cache, e));
  if (e == NULL) e = add_entry(cache, hash, key->data, key->size, encoding->soft_count);
  if (e == NULL) return no_memory();
  if (v == NULL) TORUS_TRY(add_variant(cache, job, e, encoding, aliases, &v));
  return pack(cache, encoding, v, out_launch);
}

/* The structure with the donations and how the inputs lie. */
static torus_status_t make_key(torus_job_t *job, const hlo_encoding_t *encoding,
                               torus_strbuf_t *key, int **out_aliases) {
  TORUS_TRY(find_aliases(job, encoding, out_aliases));
  TORUS_TRY(torus_job_find_spread(job, encoding));
  if (job->spread != NULL) torus_spread_settle_aliases(job->spread, *out_aliases);
  torus_strbuf_append_bytes(key, encoding->key, encoding->key_bytes);
  torus_strbuf_append_bytes(key, *out_aliases, encoding->parameter_count * sizeof(int));
  if (job->spread != NULL) torus_spread_append_key(job->spread, key);
  return TORUS_OK;
}

static torus_status_t look_up(torus_program_cache_t *cache, torus_job_t *job,
                              hlo_encoding_t *encoding, making_t making, torus_launch_t *out_launch) {
  *out_launch = (torus_launch_t){0};
  int *aliases = NULL;
  torus_strbuf_t key = {0};
  torus_status_t status = make_key(job, encoding, &key, &aliases);
  if (status == TORUS_OK) {
    pthread_mutex_lock(&cache->lock);
    status = get_keyed(cache, job, encoding, &key, aliases, making, out_launch);
    pthread_mutex_unlock(&cache->lock);
  }
  torus_strbuf_deinit(&key);
  torus_free(aliases);
  return status;
}

torus_status_t torus_program_cache_find(torus_program_cache_t *cache, torus_job_t *job,
                                        hlo_encoding_t *encoding, torus_launch_t *out_launch) {
  return look_up(cache, job, encoding, MAKE_VARIANTS, out_launch);
}

torus_status_t torus_program_cache_peek(torus_program_cache_t *cache, torus_job_t *job,
                                        hlo_encoding_t *encoding, torus_launch_t *out_launch) {
  return look_up(cache, job, encoding, MAKE_NOTHING, out_launch);
}

torus_status_t torus_program_cache_get(torus_program_cache_t *cache, torus_job_t *job,
                                       hlo_encoding_t *encoding, torus_launch_t *out_launch) {
  return look_up(cache, job, encoding, MAKE_ENTRIES, out_launch);
}
