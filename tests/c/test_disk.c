/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Programs on disk: what is written comes back, and nothing else is ever believed. */
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine_internal.h"

enum { PATH_SIZE = 512, LARGE = 20000 };

static char folder[PATH_SIZE];

static const char key[] = "a key of some length";
static const char body[] = "the body of a program";

static torus_disk_cache_t *open_cache(const char *identity, int64_t limit_bytes) {
  torus_disk_cache_t *disk = NULL;
  torus_status_ignore(torus_disk_cache_create(folder, limit_bytes, identity, &disk));
  return disk;
}

static bool is_stored(torus_disk_cache_t *disk, const char *name, const char *content,
                      size_t size) {
  char *bytes;
  size_t got;
  torus_disk_cache_read(disk, name, strlen(name), &bytes, &got);
  const bool is_equal = got == size && size > 0 && memcmp(bytes, content, size) == 0;
  if (got == 0 && bytes != NULL) fprintf(stderr, "bytes without a size\n");
  torus_free(bytes);
  return is_equal;
}

static void store(torus_disk_cache_t *disk) {
  torus_disk_cache_write(disk, key, strlen(key), body, sizeof body);
}

/* Calls |visit| with the path of every file; returns how many there are. */
static int each_file(void (*visit)(const char *path)) {
  int count = 0;
  DIR *dir = opendir(folder);
  for (struct dirent *d = dir ? readdir(dir) : NULL; d != NULL; d = readdir(dir)) {
    char path[PATH_SIZE + 300];
    if (d->d_name[0] == '.' && strncmp(d->d_name, ".new-", 5) != 0) continue;
    snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
    if (visit) visit(path);
    count++;
  }
  if (dir) closedir(dir);
  return count;
}

static char only_path[PATH_SIZE + 300];
static void note_path(const char *path) { snprintf(only_path, sizeof only_path, "%s", path); }

static size_t load(const char *path, char *bytes, size_t capacity) {
  const int file = open(path, O_RDONLY);
  const ssize_t n = file >= 0 ? read(file, bytes, capacity) : 0;
  if (file >= 0) close(file);
  return n > 0 ? (size_t)n : 0;
}

static void save(const char *path, const char *bytes, size_t size) {
  const int file = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
  if (file < 0 || write(file, bytes, size) != (ssize_t)size) fprintf(stderr, "cannot write %s\n", path);
  if (file >= 0) close(file);
}

/* ---- tests ---- */

TEST(entries_come_back) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  ASSERT_TRUE(disk != NULL);
  ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
  store(disk);
  ASSERT_TRUE(is_stored(disk, key, body, sizeof body));
  ASSERT_TRUE(!is_stored(disk, "another key", body, sizeof body));
  torus_disk_cache_write(disk, key, strlen(key), "second", 6);
  ASSERT_TRUE(is_stored(disk, key, "second", 6));
  ASSERT_EQ(each_file(NULL), 1);
  torus_disk_cache_destroy(disk);
}

TEST(entries_are_private) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  struct stat info;
  store(disk);
  each_file(note_path);
  ASSERT_EQ(stat(only_path, &info), 0);
  ASSERT_EQ(info.st_mode & 077, 0);
  ASSERT_EQ(stat(folder, &info), 0);
  ASSERT_EQ(info.st_mode & 077, 0);
  torus_disk_cache_destroy(disk);
}

TEST(entries_of_another_identity_are_absent) {
  torus_disk_cache_t *one = open_cache("one", 1 << 20), *two = open_cache("two", 1 << 20);
  store(one);
  ASSERT_TRUE(!is_stored(two, key, body, sizeof body));
  /* Even under the name that the other would give it. */
  char bytes[512], own_path[PATH_SIZE + 300];
  each_file(note_path);
  const size_t size = load(only_path, bytes, sizeof bytes);
  unlink(only_path);
  store(two);
  each_file(note_path);
  snprintf(own_path, sizeof own_path, "%s", only_path);
  save(own_path, bytes, size);
  ASSERT_TRUE(!is_stored(two, key, body, sizeof body));
  store(two);
  ASSERT_TRUE(is_stored(two, key, body, sizeof body));
  torus_disk_cache_destroy(one);
  torus_disk_cache_destroy(two);
}

TEST(entries_cut_short_are_absent) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  char bytes[512];
  store(disk);
  each_file(note_path);
  const size_t size = load(only_path, bytes, sizeof bytes);
  for (size_t kept = 0; kept < size; kept++) {
    save(only_path, bytes, kept);
    ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
  }
  bytes[size] = 'x';
  save(only_path, bytes, size + 1);
  ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
  save(only_path, bytes, size);
  ASSERT_TRUE(is_stored(disk, key, body, sizeof body));
  torus_disk_cache_destroy(disk);
}

TEST(entries_with_a_wrong_bit_are_absent) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  char bytes[512];
  store(disk);
  each_file(note_path);
  const size_t size = load(only_path, bytes, sizeof bytes);
  for (size_t bit = 0; bit < size * 8; bit++) {
    bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
    save(only_path, bytes, size);
    ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
    bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
  }
  store(disk);
  ASSERT_TRUE(is_stored(disk, key, body, sizeof body));
  torus_disk_cache_destroy(disk);
}

/* Random bytes of random lengths, some with the head of a true entry. */
TEST(entries_of_noise_are_absent) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  char bytes[512], noise[512];
  store(disk);
  each_file(note_path);
  load(only_path, bytes, sizeof bytes);
  uint64_t state = 1;
  for (int round = 0; round < 500; round++) {
    for (size_t i = 0; i < sizeof noise; i++) {
      state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
      noise[i] = (char)(state >> 40);
    }
    const size_t head = (state >> 20) % 48, size = head + (state >> 33) % 400;
    memcpy(noise, bytes, head);
    save(only_path, noise, size);
    ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
  }
  torus_disk_cache_destroy(disk);
}

TEST(other_kinds_of_files_are_absent) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  char other[PATH_SIZE + 300];
  store(disk);
  each_file(note_path);
  snprintf(other, sizeof other, "%s/elsewhere", folder);
  ASSERT_EQ(rename(only_path, other), 0);
  ASSERT_EQ(symlink(other, only_path), 0);
  ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
  unlink(only_path);
  ASSERT_EQ(mkfifo(only_path, 0600), 0);
  ASSERT_TRUE(!is_stored(disk, key, body, sizeof body));
  unlink(only_path);
  ASSERT_EQ(rename(other, only_path), 0);
  ASSERT_TRUE(is_stored(disk, key, body, sizeof body));
  torus_disk_cache_destroy(disk);
}

TEST(folders_that_others_may_write_are_refused) {
  torus_disk_cache_t *disk;
  ASSERT_EQ(chmod(folder, 0777), 0);
  torus_status_t status = torus_disk_cache_create(folder, 1 << 20, "one", &disk);
  chmod(folder, 0700);
  ASSERT_STATUS(status, TORUS_STATUS_FAILED_PRECONDITION, "other users");
}

TEST(folders_that_cannot_be_made_are_reported) {
  torus_disk_cache_t *disk;
  char path[PATH_SIZE + 32];
  snprintf(path, sizeof path, "%s/file", folder);
  save(path, "x", 1);
  ASSERT_STATUS(torus_disk_cache_create(path, 1, "one", &disk), TORUS_STATUS_UNAVAILABLE, path);
  snprintf(path, sizeof path, "%s/file/below", folder);
  ASSERT_STATUS(torus_disk_cache_create(path, 1, "one", &disk), TORUS_STATUS_UNAVAILABLE, path);
  char *long_path = torus_alloc(5000);
  memset(long_path, 'x', 4999);
  torus_status_t status = torus_disk_cache_create(long_path, 1, "one", &disk);
  torus_free(long_path);
  ASSERT_STATUS(status, TORUS_STATUS_INVALID_ARGUMENT, "too long");
}

TEST(folders_are_made_with_their_parents) {
  torus_disk_cache_t *disk;
  char path[PATH_SIZE + 32];
  snprintf(path, sizeof path, "%s/a/b/c", folder);
  ASSERT_OK(torus_disk_cache_create(path, 1 << 20, "one", &disk));
  store(disk);
  ASSERT_TRUE(is_stored(disk, key, body, sizeof body));
  torus_disk_cache_destroy(disk);
}

/* For the superuser every folder is writable; the rest of the test holds all the same. */
TEST(read_only_folders_are_read) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  store(disk);
  ASSERT_EQ(chmod(folder, 0500), 0);
  torus_disk_cache_t *again = open_cache("one", 1 << 20);
  const bool is_open = again != NULL;
  const bool is_read = is_open && is_stored(again, key, body, sizeof body);
  if (is_open) torus_disk_cache_write(again, "other", 5, body, sizeof body);
  const bool is_written = is_open && is_stored(again, "other", body, sizeof body);
  chmod(folder, 0700);
  ASSERT_TRUE(is_read);
  if (geteuid() != 0) ASSERT_TRUE(!is_written);
  torus_disk_cache_destroy(again);
  torus_disk_cache_destroy(disk);
}

static void write_large(torus_disk_cache_t *disk, const char *name) {
  char *bytes = torus_alloc(LARGE);
  torus_disk_cache_write(disk, name, strlen(name), bytes, LARGE);
  torus_free(bytes);
}

static int64_t folder_bytes;
static void add_size(const char *path) {
  struct stat info;
  if (stat(path, &info) == 0) folder_bytes += info.st_size;
}

TEST(what_was_used_longest_ago_goes_first) {
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  char name[32];
  for (int i = 0; i < 8; i++) {
    snprintf(name, sizeof name, "key %d", i);
    write_large(disk, name);
    usleep(15000);
  }
  char *bytes;
  size_t size;
  torus_disk_cache_read(disk, "key 0", 5, &bytes, &size);
  torus_free(bytes);
  ASSERT_EQ(size, LARGE);
  usleep(15000);
  torus_disk_cache_t *small = open_cache("one", 5 * LARGE);
  write_large(small, "key 8");
  folder_bytes = 0;
  each_file(add_size);
  ASSERT_TRUE(folder_bytes <= 5 * LARGE);
  torus_disk_cache_read(small, "key 0", 5, &bytes, &size);
  torus_free(bytes);
  ASSERT_EQ(size, LARGE);
  torus_disk_cache_read(small, "key 1", 5, &bytes, &size);
  torus_free(bytes);
  ASSERT_EQ(size, 0);
  torus_disk_cache_destroy(small);
  torus_disk_cache_destroy(disk);
}

TEST(old_temporary_files_are_removed) {
  char path[PATH_SIZE + 32];
  snprintf(path, sizeof path, "%s/.new-abcdef", folder);
  save(path, "x", 1);
  const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
  ASSERT_EQ(utimensat(AT_FDCWD, path, old, 0), 0);
  torus_disk_cache_t *disk = open_cache("one", 1 << 20);
  store(disk);
  ASSERT_EQ(access(path, F_OK), -1);
  ASSERT_EQ(each_file(NULL), 1);
  torus_disk_cache_destroy(disk);
}

/* ---- several writers ---- */

enum { SHARED_KEYS = 16, ROUNDS = 20 };

static size_t shared_content(int number, char *bytes) {
  const size_t size = 1000 + (size_t)number * 300;
  memset(bytes, 'a' + number, size);
  return size;
}

/* Writes and reads the shared keys; returns how many reads were neither absent nor right. */
static int hammer(void) {
  torus_disk_cache_t *disk = open_cache("shared", 1 << 20);
  char bytes[8192], name[32];
  int wrong = disk == NULL;
  for (int i = 0; disk != NULL && i < SHARED_KEYS * ROUNDS; i++) {
    const int number = i % SHARED_KEYS;
    const size_t size = shared_content(number, bytes);
    snprintf(name, sizeof name, "key %d", number);
    torus_disk_cache_write(disk, name, strlen(name), bytes, size);
    wrong += !is_stored(disk, name, bytes, size);
  }
  torus_disk_cache_destroy(disk);
  return wrong;
}

static void *hammer_thread(void *wrong) {
  *(int *)wrong = hammer();
  return NULL;
}

TEST(threads_write_the_same_entries) {
  pthread_t threads[4];
  int wrong[4] = {0};
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, hammer_thread, &wrong[i]);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 4; i++) ASSERT_EQ(wrong[i], 0);
  ASSERT_EQ(each_file(NULL), SHARED_KEYS);
}

TEST(processes_write_the_same_entries) {
  pid_t children[3];
  for (int i = 0; i < 3; i++) {
    children[i] = fork();
    ASSERT_TRUE(children[i] >= 0);
    if (children[i] != 0) continue;
    execl("/proc/self/exe", "test_disk", "--hammer", folder, (char *)NULL);
    _exit(99);
  }
  for (int i = 0; i < 3; i++) {
    int status;
    ASSERT_EQ(waitpid(children[i], &status, 0), children[i]);
    ASSERT_EQ(status, 0);
  }
  ASSERT_EQ(each_file(NULL), SHARED_KEYS);
}

static torus_status_t create_and_use(void) {
  torus_disk_cache_t *disk;
  TORUS_TRY(torus_disk_cache_create(folder, 1, "one", &disk));
  store(disk);
  char *bytes;
  size_t size;
  torus_disk_cache_read(disk, key, strlen(key), &bytes, &size);
  torus_free(bytes);
  torus_disk_cache_destroy(disk);
  return TORUS_OK;
}

TEST(failing_allocations_are_survived) { ASSERT_SURVIVES_FAILING_ALLOCATIONS(create_and_use()); }

/* ---- a fresh folder for each test ---- */

#define DISK_TESTS(X)                                                                              \
  X(entries_come_back)                                                                             \
  X(entries_are_private)                                                                           \
  X(entries_of_another_identity_are_absent)                                                        \
  X(entries_cut_short_are_absent)                                                                  \
  X(entries_with_a_wrong_bit_are_absent)                                                           \
  X(entries_of_noise_are_absent)                                                                   \
  X(other_kinds_of_files_are_absent)                                                               \
  X(folders_that_others_may_write_are_refused)                                                     \
  X(folders_that_cannot_be_made_are_reported)                                                      \
  X(folders_are_made_with_their_parents)                                                           \
  X(read_only_folders_are_read)                                                                    \
  X(what_was_used_longest_ago_goes_first)                                                          \
  X(old_temporary_files_are_removed)                                                               \
  X(threads_write_the_same_entries)                                                                \
  X(processes_write_the_same_entries)                                                              \
  X(failing_allocations_are_survived)

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
  (void)info, (void)kind, (void)where;
  return remove(path);
}

static void in_fresh_folder(void (*test)(void)) {
  snprintf(folder, sizeof folder, "%s/torus-disk-XXXXXX", P_tmpdir);
  ASSERT_TRUE(mkdtemp(folder) != NULL);
  test();
  nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

#define DISK_TEST(name)                                                                            \
  static void name##_in_folder(void) { in_fresh_folder(name); }
DISK_TESTS(DISK_TEST)

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--hammer") == 0) {
    snprintf(folder, sizeof folder, "%s", argv[2]);
    return hammer() != 0;
  }
#define DISK_ENTRY(name) {#name, name##_in_folder},
  const test_case_t tests[] = {DISK_TESTS(DISK_ENTRY)};
  return test_run_all(tests, sizeof tests / sizeof tests[0], argc, argv);
}
