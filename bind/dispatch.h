// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

namespace torus {

// Registers the boxed kernel for every operator of libtorus, with its in-place and out= overloads.
void register_operators();

} // namespace torus
