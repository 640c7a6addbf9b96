"""The YAML files that a command line is composed of; a package so that an installation carries them along."""
