# The layer of processes: torch's c10d, whose header of gloo includes headers that no package of torch
# has; cmake/gloo stands for them.
compact_layer(parallel TORCH COLD DEPENDS base)
set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/parallel/gloo_group.cpp PROPERTIES
  COMPILE_OPTIONS "-isystem;${PROJECT_SOURCE_DIR}/cmake/gloo" SKIP_UNITY_BUILD_INCLUSION ON)
