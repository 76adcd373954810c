// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
#pragma once

namespace torus {

void register_hooks();

// What a thread needs that uses the device: bfloat16 as the default dtype of autocast (set outside of
// any autocast context), and backward in the thread that calls it. Cheap: to be called wherever a
// thread first touches the device.
void prepare_thread();

} // namespace torus
