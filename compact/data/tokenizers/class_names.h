// SPDX-License-Identifier: Apache-2.0
// The names of the classes by which AutoTokenizer of transformers reads folders.
#pragma once

#include <string>

namespace compact {

inline const char* const kBackendName = "TokenizersBackend";  // which reads a file as it is

struct NamedClass {
  std::string name;
  bool fixed;    // the type of model has it, whatever the folder names
  bool by_type;  // the type of model has it, the folder names none
};

// The class of a folder that names `name` ("" where it names none) beside a model of a type ("":
// none).
NamedClass class_named(std::string name, const std::string& type);

}  // namespace compact
