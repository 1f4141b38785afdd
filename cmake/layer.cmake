# compact_layer(NAME [TORCH|TENSORS] [COLD] DEPENDS layer... LIBRARIES library... ROOMS folder...):
# one static library from compact/NAME/*.cpp and the rooms in it (*: all). TORCH: most files call operations of torch; TENSORS: most only
# know what a tensor is, so that a smaller header is precompiled. COLD: no time is spent in it, so
# that it is optimised less. What a layer may include is checked by cmake/layers.py.
include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)

# Flags of every target of ours. g++ 12 warns of overflows in std::string that are none (-Wno-restrict
# and its neighbours).
function(compact_flags target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra $<$<BOOL:${COMPACT_WERROR}>:-Werror> -Wno-unused-parameter -Wno-missing-field-initializers -Wno-stringop-overflow
    -Wno-restrict -Wno-array-bounds -fpch-preprocess>)
  if(COMPACT_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${COMPACT_SANITIZE} -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${COMPACT_SANITIZE})
  endif()
endfunction()

# The precompiled header cmake/HEADER.h of the targets that use torch, made once. Templates that a
# header leaves to be instantiated are so in every file again: what few files need stays out of it.
function(compact_precompiled target header)
  set(maker compact_pch_${header})
  if(NOT TARGET ${maker})
    file(WRITE ${CMAKE_BINARY_DIR}/${maker}.cpp "")
    add_library(${maker} OBJECT ${CMAKE_BINARY_DIR}/${maker}.cpp)
    target_link_libraries(${maker} PRIVATE compact_torch)
    target_precompile_headers(${maker} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${header}.h)
    compact_flags(${maker})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${maker})
  # CMake compiles programs with -fPIE; g++ takes a precompiled header only for its own kind of code.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
endfunction()

# Where little time is spent compilers save some, too.
function(compact_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Several sources at a time, where COMPACT_UNITY is on: most of a file's time goes into its headers.
# Tests, which are changed more often, go half as many at a time.
function(compact_unity target)
  set(batch ${COMPACT_UNITY_BATCH})
  if(target MATCHES "_test$")
    math(EXPR batch "(${batch} + 1) / 2")
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${COMPACT_UNITY}
    UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# PROGRAM names sources of the layer that the Python package has no use for.
function(compact_layer name)
  cmake_parse_arguments(ARG "TORCH;TENSORS;COLD" "" "DEPENDS;LIBRARIES;ROOMS;PROGRAM" ${ARGN})
  set(folders compact/${name})
  foreach(room IN LISTS ARG_ROOMS)
    file(GLOB found LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
      ${PROJECT_SOURCE_DIR}/compact/${name}/${room})
    list(FILTER found EXCLUDE REGEX "\\.(h|cpp)$")
    list(APPEND folders ${found})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY COMPACT_FOLDERS ${folders})
  list(TRANSFORM folders REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.cpp" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  foreach(file IN LISTS ARG_PROGRAM)
    set(file ${PROJECT_SOURCE_DIR}/compact/${name}/${file}.cpp)
    if(NOT file IN_LIST sources)
      message(FATAL_ERROR "there is no ${file}")
    elseif(NOT COMPACT_PROGRAM)
      list(REMOVE_ITEM sources ${file})
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(compact_${name} STATIC ${sources} ${ARG_SOURCES})
  add_library(CompAct::${name} ALIAS compact_${name})
  target_include_directories(compact_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(compact_${name} PUBLIC cxx_std_20)
  foreach(layer IN LISTS ARG_DEPENDS)
    target_link_libraries(compact_${name} PUBLIC compact_${layer})
  endforeach()
  if(ARG_TORCH OR ARG_TENSORS)
    target_link_libraries(compact_${name} PUBLIC compact_torch)
    if(ARG_TORCH)
      compact_precompiled(compact_${name} torch)
    else()
      compact_precompiled(compact_${name} tensors)
    endif()
  endif()
  if(ARG_COLD)
    compact_cold(compact_${name})
  endif()
  compact_unity(compact_${name})
  foreach(library IN LISTS ARG_LIBRARIES)
    compact_library(${library} target)
    target_link_libraries(compact_${name} PUBLIC ${target})
    set_property(GLOBAL APPEND PROPERTY COMPACT_LIBRARIES_${name} ${library})
  endforeach()
  compact_flags(compact_${name})
  set_property(GLOBAL APPEND PROPERTY COMPACT_LAYERS ${name})
endfunction()

# at::RecordFunction has a member more without NDEBUG, which the libraries of torch, built with it,
# do not know.
if(NOT CMAKE_BUILD_TYPE STREQUAL Release)  # which has it
  set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/ops/scopes/op_names.cpp PROPERTIES
    COMPILE_DEFINITIONS NDEBUG SKIP_PRECOMPILE_HEADERS ON)
endif()
# Its State has members of types that are the file's own, of which g++ warns in any but a main file.
set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/ops/scopes/saved_tensors.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
