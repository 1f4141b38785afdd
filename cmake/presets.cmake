# Builds presets/*.policy into the program: compact::embedded_presets() in ops/policy/policy.h.
file(GLOB preset_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/presets/*.policy)
set(preset_rows "")
foreach(file IN LISTS preset_files)
  get_filename_component(name ${file} NAME_WLE)
  file(READ ${file} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  string(APPEND preset_rows "    {\"${name}\", R\"policy(${text})policy\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/embedded_presets.cpp @ONLY CONTENT
"// Made by cmake/presets.cmake from presets/*.policy.
#include \"compact/ops/policy/policy.h\"
namespace compact {
std::span<const EmbeddedPreset> embedded_presets() {
  static const EmbeddedPreset all[] = {
@preset_rows@  };
  return all;
}
}  // namespace compact
")
if(TARGET compact_ops)
  target_sources(compact_ops PRIVATE ${CMAKE_BINARY_DIR}/embedded_presets.cpp)
endif()
