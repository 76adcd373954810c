// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Which Python line called an operator.
//
// Kernels run without the interpreter's lock. On CPython 3.11 the calling thread's own frames can
// be read all the same: only that thread changes them, and it is here. Code objects are met once
// under the lock, kept for ever (at most kMostCodes of them) and known by address from then on, so
// that a place is two words and naming it needs no lock either. On other versions a place is looked
// up under the lock, which is slow, and therefore only when somebody asked for places.
#pragma once

#include <string>
#include <vector>

#include "torus/engine.h"

namespace torus {

// Frames of files below these folders are passed over: the user's line is meant, not PyTorch's.
void set_library_folders(std::vector<std::string> folders);
// Starts naming places to libtorus.
void register_places();
// Places are wanted on every version; calls nest.
void want_places(bool wanted);
// The innermost frame of the calling thread that is the user's. Zero in threads without Python
// frames, such as those of autograd. Must not be called under a device's lock.
torus_place_t current_place();

} // namespace torus
