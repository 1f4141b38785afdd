# compact_layer(NAME [TORCH] DEPENDS layer... LIBRARIES library...): one static library from
# compact/NAME/*.cpp. What a layer may include is checked by cmake/layers.py.
include(${CMAKE_CURRENT_LIST_DIR}/libraries.cmake)

# Flags of every target of ours. g++ 12 warns of overflows in std::string that are none (-Wno-restrict
# and its neighbours).
function(compact_flags target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -Wno-stringop-overflow
    -Wno-restrict -Wno-array-bounds -fpch-preprocess>)
  if(COMPACT_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${COMPACT_SANITIZE} -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${COMPACT_SANITIZE})
  endif()
endfunction()

# The precompiled header of the torch layers, made once.
function(compact_precompiled target)
  if(NOT TARGET compact_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/pch.cpp "")
    add_library(compact_pch OBJECT ${CMAKE_BINARY_DIR}/pch.cpp)
    target_link_libraries(compact_pch PRIVATE compact_torch)
    target_precompile_headers(compact_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)
    compact_flags(compact_pch)
  endif()
  target_precompile_headers(${target} REUSE_FROM compact_pch)
  # CMake compiles programs with -fPIE; g++ takes a precompiled header only for its own kind of code.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
endfunction()

function(compact_layer name)
  cmake_parse_arguments(ARG "TORCH" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/compact/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
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
  if(ARG_TORCH)
    target_link_libraries(compact_${name} PUBLIC compact_torch)
    compact_precompiled(compact_${name})
  endif()
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
set_source_files_properties(${PROJECT_SOURCE_DIR}/compact/ops/op_names.cpp PROPERTIES
  COMPILE_DEFINITIONS NDEBUG SKIP_PRECOMPILE_HEADERS ON)
