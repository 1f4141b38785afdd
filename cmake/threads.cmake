# at::parallel_for is silently serial in a file compiled without -fopenmp. With g++ the program and
# torch share one libgomp; clang's OpenMP is another runtime, so there the kernels run serially.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/codecs/threads.cpp PROPERTIES
    COMPILE_OPTIONS -fopenmp SKIP_PRECOMPILE_HEADERS ON)
  target_link_libraries(compact_codecs PUBLIC gomp)
endif()
if(COMPACT_CUDA)
  target_compile_definitions(compact_codecs PRIVATE COMPACT_CUDA)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/ops/memory/memory.cpp PROPERTIES
    COMPILE_DEFINITIONS COMPACT_CUDA)
endif()
