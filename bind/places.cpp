// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#include "places.h"

#include <Python.h>

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000 && !defined(TORUS_LOCKED_PLACES)
#define TORUS_READS_FRAMES 1
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <atomic>
#include <cstring>
#include <mutex>

#include "runtime.h"
#include "torus/explain.h"
#include "torus/log.h"

namespace torus {
namespace {

constexpr size_t kSlots = 8192; // power of two
constexpr size_t kMostCodes = kSlots / 2;
constexpr int kMostFrames = 64;

struct Code {
  std::atomic<PyCodeObject *> code{nullptr}; // published last
  const char *file = nullptr;                // of the code object, which is kept
  bool is_library = false;
};

struct Codes {
  Code slots[kSlots];
  size_t count = 0; // under the interpreter's lock
  std::mutex mutex; // of |folders|
  std::vector<std::string> folders;
  std::atomic<int> wanted{0};
};

Codes &codes() {
  static Codes *const c = new Codes;
  return *c;
}

size_t slot_of(const PyCodeObject *code) {
  return (reinterpret_cast<uintptr_t>(code) >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 40 &
         (kSlots - 1);
}

// The slot that holds the code, or the free one where it belongs. At least half are free.
Code &probe(const PyCodeObject *code) {
  for (size_t i = slot_of(code);; i = (i + 1) & (kSlots - 1)) {
    Code &slot = codes().slots[i];
    const PyCodeObject *held = slot.code.load(std::memory_order_acquire);
    if (held == code || held == nullptr) return slot;
  }
}

bool is_library(const char *file) {
  if (std::strncmp(file, "<frozen", 7) == 0) return true;
  std::lock_guard<std::mutex> guard(codes().mutex);
  for (const std::string &folder : codes().folders) {
    if (std::strncmp(file, folder.c_str(), folder.size()) == 0) return true;
  }
  return false;
}

// With the interpreter's lock, which also keeps other writers out. nullptr when there is no room.
const Code *meet(PyCodeObject *code) {
  Code &slot = probe(code);
  if (slot.code.load(std::memory_order_relaxed) == code) return &slot;
  if (codes().count >= kMostCodes) return nullptr;
  const char *file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  slot.file = file;
  slot.is_library = is_library(file);
  Py_INCREF(code);
  codes().count += 1;
  slot.code.store(code, std::memory_order_release);
  return &slot;
}

const Code *find(PyCodeObject *code) {
  const Code &slot = probe(code);
  return slot.code.load(std::memory_order_relaxed) == code ? &slot : nullptr;
}

// Any thread, no lock: the code is kept, and its table of lines never changes.
const char *name_place(torus_place_t place, int *out_line) {
  auto *const code = static_cast<PyCodeObject *>(const_cast<void *>(place.code));
  const Code *known = find(code);
  if (known == nullptr) return nullptr;
  *out_line = PyCode_Addr2Line(code, place.instruction);
  return known->file;
}

#ifdef TORUS_READS_FRAMES

const Code *meet_with_lock(PyCodeObject *code) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const Code *known = meet(code);
  PyGILState_Release(state);
  return known;
}

torus_place_t place_in(const _PyInterpreterFrame *frame) {
  const auto *const first = reinterpret_cast<const _Py_CODEUNIT *>(frame->f_code->co_code_adaptive);
  const auto instruction =
      (frame->prev_instr - first) * static_cast<ptrdiff_t>(sizeof(_Py_CODEUNIT));
  return {frame->f_code, static_cast<int32_t>(instruction)};
}

torus_place_t look() {
  torus_place_t innermost{};
  PyThreadState *const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || thread->cframe == nullptr) return innermost;
  const _PyInterpreterFrame *frame = thread->cframe->current_frame;
  for (int i = 0; frame != nullptr && i < kMostFrames; ++i, frame = frame->previous) {
    const Code *code = find(frame->f_code);
    if (code == nullptr) code = meet_with_lock(frame->f_code);
    if (code == nullptr) continue;
    if (!code->is_library) return place_in(frame);
    if (innermost.code == nullptr) innermost = place_in(frame);
  }
  return innermost;
}

#else

torus_place_t look_with_lock(PyThreadState *thread) {
  torus_place_t innermost{};
  PyFrameObject *frame = PyThreadState_GetFrame(thread);
  for (int i = 0; frame != nullptr && i < kMostFrames; ++i) {
    PyCodeObject *const own = PyFrame_GetCode(frame);
    const Code *code = meet(own);
    const torus_place_t place{own, PyFrame_GetLasti(frame)};
    Py_DECREF(own);
    PyFrameObject *const outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
    if (code == nullptr) continue;
    if (!code->is_library) {
      Py_XDECREF(frame);
      return place;
    }
    if (innermost.code == nullptr) innermost = place;
  }
  Py_XDECREF(frame);
  return innermost;
}

torus_place_t look() {
  if (codes().wanted.load(std::memory_order_relaxed) == 0 && mode() != TORUS_MODE_DEBUG) return {};
  PyThreadState *const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return {};
  const PyGILState_STATE state = PyGILState_Ensure();
  const torus_place_t place = look_with_lock(thread);
  PyGILState_Release(state);
  return place;
}

#endif

} // namespace

void set_library_folders(std::vector<std::string> folders) {
  std::lock_guard<std::mutex> guard(codes().mutex);
  codes().folders = std::move(folders);
}

void want_places(bool wanted) { codes().wanted += wanted ? 1 : -1; }

void register_places() {
  torus_log_configure_from_environment();
  torus_set_place_namer(name_place);
  if (torus_log_is_on(TORUS_LOG_LINES)) want_places(true);
}

torus_place_t current_place() { return look(); }

} // namespace torus
