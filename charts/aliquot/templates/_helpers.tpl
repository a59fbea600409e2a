{{- define "aliquot.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "aliquot.kubeletPlugin.name" -}}
{{- include "aliquot.fullname" . }}-kubelet-plugin
{{- end -}}

{{- define "aliquot.kubeletPlugin.serviceAccount" -}}
{{- default (include "aliquot.kubeletPlugin.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Never changes: the selector of a DaemonSet can't. */}}
{{- define "aliquot.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "aliquot.labels" -}}
{{ include "aliquot.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: aliquot
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "aliquot.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* gpu.aliquot.dev publishes for the classes gpu.aliquot.dev, and later mig.aliquot.dev and so on. */}}
{{- define "aliquot.domain" -}}
{{- trimPrefix "gpu." .Values.driverName -}}
{{- end -}}
