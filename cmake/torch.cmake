# Finds LibTorch without importing it and makes the imported target `compact_torch`: torch's own
# package file is not used, since the CUDA build's searches for a toolkit that is not needed here.
# Order: TORCH_DIR (CMake or environment; the folder that holds share/cmake/Torch; of a wheel what
# wheel_metadata.py found), the active Python environment, .venv. Installed, so that the package file
# finds torch in the same way.
if(TARGET compact_torch)
  return()
endif()
if(TORCH_DIR AND NOT EXISTS "${TORCH_DIR}/lib")  # remembered, and gone since
  unset(TORCH_DIR CACHE)
endif()
if(NOT TORCH_DIR AND DEFINED ENV{TORCH_DIR})
  set(TORCH_DIR $ENV{TORCH_DIR})
endif()
if(NOT TORCH_DIR)
  set(candidates $ENV{VIRTUAL_ENV}/bin/python $ENV{CONDA_PREFIX}/bin/python
    ${PROJECT_SOURCE_DIR}/.venv/bin/python python3)
  foreach(python IN LISTS candidates)
    execute_process(
      COMMAND ${python} -E -c "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('torch').origin).parent)"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
      set(TORCH_DIR ${found})
      break()
    endif()
  endforeach()
endif()
if(NOT TORCH_DIR OR NOT EXISTS "${TORCH_DIR}/lib")
  message(FATAL_ERROR "no LibTorch found (TORCH_DIR: `${TORCH_DIR}`): run scripts/setup.sh, activate an environment that has torch, or set TORCH_DIR to the folder that holds share/cmake/Torch")
endif()
set(TORCH_DIR ${TORCH_DIR} CACHE PATH "folder that holds share/cmake/Torch" FORCE)
set(version_file ${TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${version_file})
  set(version_file ${TORCH_DIR}/include/torch/csrc/api/include/torch/version.h)
endif()
set(TORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${version_file} line REGEX "define TORCH_VERSION_${part} +[0-9]+")
  string(REGEX MATCH "[0-9]+$" number "${line}")
  list(APPEND TORCH_VERSION ${number})
endforeach()
list(JOIN TORCH_VERSION "." TORCH_VERSION)
message(STATUS "LibTorch ${TORCH_VERSION} in ${TORCH_DIR}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor ${TORCH_VERSION})
if(SKBUILD_PROJECT_VERSION_FULL AND NOT "${SKBUILD_PROJECT_VERSION_FULL}." MATCHES "\\+torch${torch_minor}\\.")
  message(FATAL_ERROR "the wheel is to be ${SKBUILD_PROJECT_VERSION_FULL}, and this torch is ${TORCH_VERSION}: "
    "name its folder by the environment variable TORCH_DIR, not as a definition of CMake")
endif()
if(EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so AND TORCH_VERSION VERSION_LESS 2.10)
  message(FATAL_ERROR "with CUDA torch must be 2.10 or later, is ${TORCH_VERSION}: products of bf16 that are added in f32 came with it")
endif()

add_library(compact_torch INTERFACE IMPORTED)
target_include_directories(compact_torch SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
foreach(name c10 torch_cpu torch c10_cuda torch_cuda)
  set(file ${TORCH_DIR}/lib/lib${name}.so)
  if(EXISTS ${file})
    add_library(torch::${name} SHARED IMPORTED)
    set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION ${file} IMPORTED_NO_SONAME OFF)
    target_link_libraries(compact_torch INTERFACE torch::${name})
    if(name MATCHES cuda)
      # It registers itself when loaded, and nothing of it is called by name: some linkers would leave
      # it out. One item, since CMake removes repeated ones.
      target_link_libraries(compact_torch INTERFACE
        "-Wl,--push-state,--no-as-needed,${file},--pop-state")
    endif()
  endif()
endforeach()
