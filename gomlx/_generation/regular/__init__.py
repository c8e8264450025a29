"""Regular expressions of JSON schemas, ECMA-262's, as languages: parsed, compared, said again without assertions."""
