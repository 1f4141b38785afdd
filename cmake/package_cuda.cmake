# For the Python package alone: turns CUDA kernels on where torch is one for CUDA and there is an
# nvcc, in an installed toolkit or in pip's packages beside torch. The program's scripts choose for
# themselves.
if(COMPACT_CUDA OR NOT EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so)
  return()
endif()
find_program(COMPACT_NVCC nvcc NO_DEFAULT_PATH PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin
  ${TORCH_DIR}/../nvidia/cu13/bin)
if(COMPACT_NVCC)
  set(CMAKE_CUDA_COMPILER ${COMPACT_NVCC})
  set(COMPACT_CUDA ON)
  message(STATUS "CUDA kernels with ${COMPACT_NVCC}")
else()
  message(WARNING "torch is one for CUDA and there is no nvcc (CUDA_HOME, /usr/local/cuda, pip's nvidia-cuda-nvcc): "
    "layers on a GPU will keep their own forward pass")
endif()
