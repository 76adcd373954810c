// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

namespace torus {

void register_hooks();

// Makes bfloat16 the calling thread's default dtype for autocast, once per thread and only outside
// of any autocast context. Cheap: to be called wherever a thread first touches the device.
void prepare_thread();

} // namespace torus
