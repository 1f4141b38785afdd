# The kernels layer: one folder of compact/kernels per backend, fastest first. A new backend is a
# folder and its name in this list.
set(COMPACT_BACKENDS cpu reference meta)
if(NOT COMPACT_PROGRAM)  # the others are compared with it by tests and the program's self-check
  list(REMOVE_ITEM COMPACT_BACKENDS reference)
endif()
if(COMPACT_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})  # nvcc on the PATH may be a wrapper
    find_program(CMAKE_CUDA_COMPILER nvcc PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin NO_DEFAULT_PATH)
    if(NOT CMAKE_CUDA_COMPILER)
      unset(CMAKE_CUDA_COMPILER CACHE)
    endif()
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit)
  if(TARGET CUDA::cudart)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # the same one as torch's, not a second
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know CUDA20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  list(PREPEND COMPACT_BACKENDS cuda)
endif()

set(backend_list "")
set(kernel_sources "")
foreach(backend IN LISTS COMPACT_BACKENDS)
  file(GLOB sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/compact/kernels/${backend}/*.cpp ${PROJECT_SOURCE_DIR}/compact/kernels/${backend}/*.cu)
  string(APPEND backend_list "X(${backend}) ")
  if(backend MATCHES "^(cpu|reference)$")  # with flags of their own; sources that have such are never joined
    add_library(compact_kernels_${backend} OBJECT ${sources})
    target_include_directories(compact_kernels_${backend} PRIVATE ${PROJECT_SOURCE_DIR})
    compact_unity(compact_kernels_${backend})
    compact_flags(compact_kernels_${backend})
    set(sources $<TARGET_OBJECTS:compact_kernels_${backend}>)
  endif()
  list(APPEND kernel_sources ${sources})
endforeach()
target_compile_options(compact_kernels_cpu PRIVATE -O3 -march=${COMPACT_CPU_ARCH} -Wno-psabi
  -fno-math-errno -fno-trapping-math -ffp-contract=off)
if(TARGET compact_kernels_reference)
  target_compile_options(compact_kernels_reference PRIVATE -ffp-contract=off)
endif()
compact_layer(kernels DEPENDS base PROGRAM self_check self_check_codecs self_check_layers
  self_check_side self_check_updates)
target_sources(compact_kernels PRIVATE ${kernel_sources})
target_compile_definitions(compact_kernels PRIVATE "COMPACT_BACKENDS=${backend_list}")
target_link_libraries(compact_kernels PUBLIC compact_base)
if(COMPACT_CUDA)
  if(TARGET CUDA::cudart)
    target_link_libraries(compact_kernels PUBLIC CUDA::cudart)
  else()  # a toolkit without a development link: nvcc brings the static runtime
    target_include_directories(compact_kernels SYSTEM PUBLIC ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  endif()
  target_compile_definitions(compact_kernels PRIVATE COMPACT_HAS_CUDA)
  target_compile_options(compact_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
  if(COMPACT_PTXAS_INFO)
    target_compile_options(compact_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
  endif()
endif()

# It takes as long as all others of its folder.
set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/kernels/cpu/quantize.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
# A program with a table of its own replaces this object file alone.
set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/kernels/backends.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)

# kernel_check: every kernel against the reference; needs no test library.
add_executable(kernel_check EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/kernels/kernel_check.cpp)
target_link_libraries(kernel_check PRIVATE compact_kernels)
compact_flags(kernel_check)
